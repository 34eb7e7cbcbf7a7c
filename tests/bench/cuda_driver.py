# SPDX-License-Identifier: Apache-2.0
"""The few calls of the CUDA driver that torch has no name for.

They work on the current context: make torch use the device first.
"""
import ctypes

READ_ONLY_REGISTER = 113  # CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_...
PORTABLE, DEVICEMAP, READ_ONLY = 1, 2, 8  # CU_MEMHOSTREGISTER_
CAPTURE_RELAXED = 2
NODE_KERNEL = 0


class DriverError(RuntimeError):
    """A CUresult that is not success, with its name."""


class _KernelNode(ctypes.Structure):  # CUDA_KERNEL_NODE_PARAMS_v2
    _fields_ = [("func", ctypes.c_void_p), ("grid", ctypes.c_uint * 3),
                ("block", ctypes.c_uint * 3), ("shared", ctypes.c_uint),
                ("params", ctypes.c_void_p), ("extra", ctypes.c_void_p),
                ("kern", ctypes.c_void_p), ("ctx", ctypes.c_void_p)]


def _cuda():
    return ctypes.CDLL("libcuda.so.1")


def _call(name, *args):
    result = getattr(_cuda(), name)(*args)
    if result:
        text = ctypes.c_char_p()
        _cuda().cuGetErrorString(result, ctypes.byref(text))
        raise DriverError(f"{name}: {(text.value or b'?').decode()} "
                          f"({result})")


def driver_version():
    """The newest CUDA that the driver knows, as "13.0"."""
    version = ctypes.c_int()
    _call("cuDriverGetVersion", ctypes.byref(version))
    return f"{version.value // 1000}.{version.value % 1000 // 10}"


def attribute(number):
    device = ctypes.c_int()
    value = ctypes.c_int()
    _call("cuCtxGetDevice", ctypes.byref(device))
    _call("cuDeviceGetAttribute", ctypes.byref(value), number, device)
    return value.value


def free_device_bytes():
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    _call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    return free.value


def register(address, size, read_only):
    _call("cuMemHostRegister_v2", ctypes.c_void_p(address),
          ctypes.c_size_t(size),
          PORTABLE | DEVICEMAP | (READ_ONLY if read_only else 0))
    device = ctypes.c_void_p()
    _call("cuMemHostGetDevicePointer_v2", ctypes.byref(device),
          ctypes.c_void_p(address), 0)
    if device.value != address:
        unregister(address)
        raise DriverError("this device sees registered memory at another "
                          "address than the host: the benchmark needs both "
                          "to be one")


def unregister(address):
    _call("cuMemHostUnregister", ctypes.c_void_p(address))


def launch_shape(launch):
    """(blocks, threads a block) of each kernel that launch() starts.

    The launches are captured into a graph that is thrown away: they do not
    run.  launch() must have run once before.
    """
    import torch

    stream = torch.cuda.Stream()
    handle = ctypes.c_void_p(stream.cuda_stream)
    graph = ctypes.c_void_p()
    with torch.cuda.stream(stream):
        _call("cuStreamBeginCapture_v2", handle, CAPTURE_RELAXED)
        try:
            launch()
        finally:
            _call("cuStreamEndCapture", handle, ctypes.byref(graph))
    try:
        return _kernels_of(graph)
    finally:
        _call("cuGraphDestroy", graph)


def _kernels_of(graph):
    count = ctypes.c_size_t()
    _call("cuGraphGetNodes", graph, None, ctypes.byref(count))
    nodes = (ctypes.c_void_p * count.value)()
    _call("cuGraphGetNodes", graph, nodes, ctypes.byref(count))
    shapes = []
    for node in nodes:
        kind = ctypes.c_int()
        _call("cuGraphNodeGetType", ctypes.c_void_p(node), ctypes.byref(kind))
        if kind.value != NODE_KERNEL:
            continue
        params = _KernelNode()
        _call("cuGraphKernelNodeGetParams_v2", ctypes.c_void_p(node),
              ctypes.byref(params))
        shapes.append((params.grid[0] * params.grid[1] * params.grid[2],
                       params.block[0] * params.block[1] * params.block[2]))
    return shapes
