# SPDX-License-Identifier: Apache-2.0
"""Arrays of NumPy, torch, and whatever else has __cuda_array_interface__, as
addresses and strides.

Kinds are what the C functions take: "int32", "int64", "bool" (one byte, not
zero is true), "bytes" (uint8) and "bf16".  NumPy has no bf16: uint16, the bits,
stands for it, and ml_dtypes.bfloat16 is taken too.
"""
from __future__ import annotations

import sys
from typing import Any, NamedTuple

from . import errors

CPU = -1  # as a device

# By NumPy's one-letter codes, which are quick to get.
_NUMPY_KINDS = {
    "i": ("int32",), "l": ("int64",), "q": ("int64",), "?": ("bool",),
    "B": ("bool", "bytes"), "b": ("bool",), "H": ("bf16",)}
_TYPESTR_KINDS = {
    "<i4": ("int32",), "<i8": ("int64",), "|b1": ("bool",),
    "|u1": ("bool", "bytes"), "|i1": ("bool",), "<u2": ("bf16",),
    "<V2": ("bf16",), "|V2": ("bf16",)}
_torch_kinds: dict[Any, tuple[str, ...]] = {}
_torch_int32: Any = None
_torch_int64: Any = None


class View(NamedTuple):
    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in elements
    device: int  # CUDA ordinal, or CPU


# Of an array that was not given.
NO_VIEW = View(0, (0, 0), (0, 0), CPU)
_make_view = tuple.__new__  # View(...), without a call of Python


def torch() -> Any:
    """torch if the process has imported it, else None."""
    return sys.modules.get("torch")


def numpy_module() -> Any:
    try:
        import numpy as module
    except ImportError:
        raise errors.Unsupported(
            "arrays on the CPU need NumPy",
            fix="pip install numpy, or give torch tensors") from None
    return module


_Tensor: Any = None  # torch's, once the process has imported it


def _tensor_type() -> Any:
    """torch's, or one that nothing has, while torch is not imported."""
    global _Tensor  # pylint: disable=global-statement
    if _Tensor is None:
        _Tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    return _Tensor or _NoArray


def is_tensor(array: Any) -> bool:
    return isinstance(array, _Tensor or _tensor_type())


def compiling() -> bool:
    """Is torch.compile tracing the caller?  An old torch never is."""
    compiler = getattr(sys.modules.get("torch"), "compiler", None)
    asked = getattr(compiler, "is_compiling", None)
    return asked is not None and bool(asked())


def _torch_kinds_of(dtype: Any) -> tuple[str, ...]:
    global _torch_int32, _torch_int64  # pylint: disable=global-statement
    if not _torch_kinds:
        module = torch()
        _torch_int32, _torch_int64 = module.int32, module.int64
        _torch_kinds.update({
            module.int32: ("int32",), module.int64: ("int64",),
            module.bool: ("bool",), module.uint8: ("bool", "bytes"),
            module.int8: ("bool",), module.bfloat16: ("bf16",)})
    return _torch_kinds.get(dtype, ())


def _wrong(name: str, what: str, fix: str = "") -> errors.EngramError:
    return errors.InvalidArgument(f"{name}: {what}", path=name, fix=fix)


def view(array: Any, name: str, kind: str, dims: int) -> View:
    """InvalidArgument, with `name`, for what is not such an array."""
    if isinstance(array, _Tensor or _tensor_type()):
        dtype: Any = array.dtype
        if array.is_cuda:
            device = array.get_device()
        elif array.is_cpu:
            device = CPU
        else:
            raise _wrong(name, f"on {array.device}, wanted on the CPU or a "
                         "CUDA device")
        shape = array.shape
        kinds = _torch_kinds.get(dtype) or _torch_kinds_of(dtype)
        result = _make_view(
            View, (array.data_ptr(), shape, array.stride(), device))
        if kind in kinds and len(shape) == dims:
            return result
    elif isinstance(array, _ndarray()):
        dtype = array.dtype
        kinds = _NUMPY_KINDS.get(dtype.char) or (
            ("bf16",) if dtype.name == "bfloat16" else ())
        result = _numpy_view(array, name)
    elif hasattr(array, "__cuda_array_interface__"):
        result, dtype = _cuda_view(array)
        kinds = _TYPESTR_KINDS.get(dtype, ())
    else:
        raise _wrong(name, "an array of NumPy, torch or CUDA wanted, "
                     f"{type(array).__name__} given")
    if kind not in kinds:
        raise _wrong(name, f"{kind} wanted, {dtype} given",
                     "convert it: .int() in torch, .astype in NumPy"
                     if kind == "int32" else "")
    if len(result.shape) != dims:
        raise _wrong(name, f"{dims} dimensions wanted, {len(result.shape)} "
                     f"given: {list(result.shape)}")
    return result


def _ndarray() -> Any:
    """NumPy's type, or one that nothing has, while NumPy is not imported."""
    module = sys.modules.get("numpy")
    return getattr(module, "ndarray", _NoArray)


class _NoArray:
    pass


def _numpy_view(array: Any, name: str) -> View:
    size = array.itemsize
    strides = array.strides
    for stride in strides:
        if stride % size:
            raise _wrong(name, "strides that are no multiples of its items",
                         "copy it first")
    return View(array.__array_interface__["data"][0], array.shape,
                tuple([stride // size for stride in strides]), CPU)


def _cuda_view(array: Any) -> tuple[View, str]:
    interface = array.__cuda_array_interface__
    shape, typestr = tuple(interface["shape"]), interface["typestr"]
    size = int(typestr[2:])
    strides = interface.get("strides")
    if strides is None:
        strides = contiguous(shape)
    else:
        strides = tuple(stride // size for stride in strides)
    device = getattr(array, "device", 0)
    return View(interface["data"][0], shape, strides,
                int(getattr(device, "id", device) or 0)), typestr


def contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of an array without gaps."""
    result = [1]
    for length in reversed(shape[1:]):
        result.append(result[-1] * length)
    return tuple(reversed(result))


def output(array: Any, name: str, kind: str, shape: tuple[int, ...]) -> View:
    """A view to write to: of that shape, without gaps."""
    result = view(array, name, kind, len(shape))
    if result[1] != shape:
        raise _wrong(name, f"shape {list(shape)} wanted, "
                     f"{list(result.shape)} given")
    if isinstance(array, _Tensor or _tensor_type()):
        whole, writable = array.is_contiguous(), True
        if whole:
            return result
    elif isinstance(array, _ndarray()):
        flags = array.flags
        whole, writable = flags.c_contiguous, flags.writeable
    else:
        whole, writable = result.strides == contiguous(shape), True
    if not whole:
        raise _wrong(name, "contiguous memory wanted", "call .contiguous()")
    if not writable:
        raise _wrong(name, "it is read-only")
    return result


def empty_like(array: Any, shape: tuple[int, ...], kind: str) -> Any:
    """A new array of the library, and on the device, of `array`."""
    if is_tensor(array):
        module = torch()
        return module.empty(shape, device=array.device, dtype={
            "bf16": module.bfloat16, "int32": module.int32,
            "bytes": module.uint8}[kind])
    if hasattr(array, "__cuda_array_interface__"):
        raise errors.InvalidArgument(
            "out: wanted, since new arrays can be made for NumPy and torch "
            "only", path="out")
    return numpy_module().empty(shape, dtype={
        "bf16": "uint16", "int32": "int32", "bytes": "uint8"}[kind])


def empty_on(device: int, shape: tuple[int, ...], kind: str,
             stream: Any) -> Any:
    """A new tensor on a CUDA device, for use in that stream."""
    module = torch()
    if module is None:
        raise errors.InvalidArgument(
            "out: wanted, since torch is what new arrays on a device are of",
            path="out")
    like = module.empty(0, device=f"cuda:{device}")
    entered = torch_stream(stream, like)
    if entered is None:
        return empty_like(like, shape, kind)
    with entered:
        return empty_like(like, shape, kind)


def int32(array: Any, name: str) -> Any:
    """Integers on the CPU as int32, copied if they are not; what does not fit
    is refused.  Lists become NumPy arrays.  On a device they stay as they
    are."""
    if is_tensor(array) and (array.is_cuda or array.dtype is _torch_int32):
        return array
    return _integers(array, name, "int32")


def int64(array: Any, name: str) -> Any:
    if is_tensor(array) and (array.is_cuda or array.dtype is _torch_int64):
        return array
    return _integers(array, name, "int64")


def _integers(array: Any, name: str, kind: str) -> Any:
    if is_tensor(array):
        if array.is_cuda or kind in _torch_kinds_of(array.dtype) or \
                array.is_floating_point():
            return array
        return _to_torch(array, name, kind)
    if not isinstance(array, _ndarray()):
        if hasattr(array, "__cuda_array_interface__"):
            return array
        array = numpy_module().asarray(array)
        if not array.size:
            return array.astype(kind)
    if kind in _NUMPY_KINDS.get(array.dtype.char, ()) or \
            array.dtype.kind not in "iu":
        return array
    _check_range(array.size and (int(array.min()), int(array.max())), name,
                 kind)
    return array.astype(kind)


def _to_torch(array: Any, name: str, kind: str) -> Any:
    _check_range(array.numel() and (int(array.min()), int(array.max())), name,
                 kind)
    return array.to(getattr(torch(), kind))


def _check_range(ends: Any, name: str, kind: str) -> None:
    bits = int(kind[3:]) - 1
    if ends and not (-1 << bits <= ends[0] and ends[1] < 1 << bits):
        wrong = ends[0] if ends[0] < -1 << bits else ends[1]
        raise _wrong(name, f"{wrong} does not fit into {kind}")


class Memory:
    """Mapped memory for NumPy to look at; keeps `owner` while it lives."""

    def __init__(self, owner: Any, pointer: int, shape: tuple[int, ...],
                 strides_bytes: tuple[int, ...], typestr: str) -> None:
        self.owner = owner
        self.__array_interface__: dict[str, Any] = {
            "version": 3, "data": (pointer, True), "shape": shape,
            "strides": strides_bytes, "typestr": typestr}


class DeviceMemory:
    """The same as a CUDA device sees it."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.__cuda_array_interface__ = {
            **memory.__array_interface__, "version": 2,
            # torch refuses read-only memory; kernels that write to it fault
            "data": (memory.__array_interface__["data"][0], False)}


def torch_stream(stream: Any, array: Any) -> Any:
    """A context in which `stream` is torch's current one, so that whatever is
    allocated belongs to it; None when there is nothing to enter."""
    if stream is None or not is_tensor(array) or not array.is_cuda:
        return None
    module = torch()
    if isinstance(stream, int):
        stream = module.cuda.ExternalStream(stream, device=array.device)
    return module.cuda.stream(stream)


def launching(stream: Any, device: int) -> tuple[int, Any]:
    """The CUstream, as stream_pointer has it, and a context in which `device`
    is the current one, or None where it is."""
    module = sys.modules.get("torch")
    if module is None or not module.cuda.is_initialized():
        return stream_pointer(stream, device), None
    c = module._C
    return (c._cuda_getCurrentRawStream(device) if stream is None else
            stream_pointer(stream, device),
            None if c._cuda_getDevice() == device else
            module.cuda.device(device))


def stream_pointer(stream: Any, device: int) -> int:
    """The CUstream of what was given; None: torch's current one, if the
    process uses torch, else the default stream."""
    if stream is None:
        module = torch()
        if module is None or not module.cuda.is_initialized():
            return 0
        return int(module._C._cuda_getCurrentRawStream(device))
    if isinstance(stream, int):
        return stream
    for name in ("cuda_stream", "ptr", "handle"):
        pointer = getattr(stream, name, None)
        if pointer is not None:
            return int(pointer)
    raise _wrong("stream", "a torch.cuda.Stream or the address of a CUstream "
                 f"wanted, {type(stream).__name__} given")
