# SPDX-License-Identifier: Apache-2.0
"""Computations of a layer that need no table: gate, sequence-parallel rows.
Arrays, devices and streams are as engram_client.Table says."""
from __future__ import annotations

from ctypes import addressof
from typing import Any

from . import _abi, _arrays, _library, errors
from ._arrays import CPU, View

CLAMP = 1e-6


def _check_shapes(views: dict[str, View],
                  wanted: dict[str, tuple[int, ...]]) -> None:
    for name, shape in wanted.items():
        if name in views and views[name].shape != shape:
            raise errors.InvalidArgument(
                f"{name}: shape {list(shape)} wanted, "
                f"{list(views[name].shape)} given", path=name)


def hash_batch(views: dict[str, View], block_size: int) -> _abi.HashBatch:
    """struct engram_hash_batch, its shapes checked against each other."""
    ids, positions = views["input_ids"], views["positions"]
    bounds = views["query_start_loc"]
    tokens, requests = ids.shape[0], bounds.shape[0] - 1
    wanted: dict[str, tuple[int, ...]] = {
        "positions": (tokens,), "dead_mask": (tokens,),
        "slot_mapping": (tokens,)}
    lookback = views.get("lookback_ids")
    if lookback is not None:
        wanted["lookback_ids"] = (requests, lookback.shape[1])
        wanted["lookback_dead"] = (requests, lookback.shape[1])
    _check_shapes(views, wanted)
    batch = _abi.HashBatch(
        num_tokens=tokens, input_ids=ids.pointer, input_stride=ids.strides[0],
        positions=positions.pointer, position_stride=positions.strides[0],
        query_start_loc=bounds.pointer, query_stride=bounds.strides[0],
        num_requests=requests, block_size=block_size)
    dead = views.get("dead_mask")
    if dead is not None:
        batch.dead_mask, batch.dead_stride = dead.pointer, dead.strides[0]
    if lookback is not None:
        batch.lookback_ids = lookback.pointer
        batch.lookback_row_stride, batch.lookback_col_stride = lookback.strides
        batch.lookback_depth = lookback.shape[1]
    dead = views.get("lookback_dead")
    if dead is not None:
        batch.lookback_dead = dead.pointer
        batch.lookback_dead_row_stride, batch.lookback_dead_col_stride = \
            dead.strides
    _slots(batch, views)
    return batch


def _slots(batch: _abi.HashBatch, views: dict[str, View]) -> None:
    cache = views.get("slot_cache")
    if cache is not None:
        if cache.strides != (1,) and cache.shape[0] > 1:
            raise errors.InvalidArgument(
                "slot_cache: contiguous memory wanted", path="slot_cache")
        batch.slot_cache, batch.num_slots = cache.pointer, cache.shape[0]
    mapping = views.get("slot_mapping")
    if mapping is not None:
        batch.slot_mapping = mapping.pointer
        batch.slot_stride = mapping.strides[0]
    table = views.get("block_table")
    if table is not None:
        batch.block_table = table.pointer
        batch.block_row_stride, batch.block_col_stride = table.strides
        batch.num_block_rows, batch.max_blocks = table.shape


def gate(hidden: Any, kv: Any, q_weight: Any, k_weight: Any, *,
         token_mask: Any = None, eps: float = 1e-20, clamp: float = CLAMP,
         out: Any = None, stream: Any = None) -> Any:
    """Rows, projected to keys and a value, into the residual stream.

    hidden      bf16 [T, hc_mult, dim], any strides
    kv          bf16 [K, (hc_mult + 1) * dim], hc_mult keys, then one value;
                tokens from K on have zeros
    q_weight, k_weight
                bf16 [hc_mult, dim]
    token_mask  bool [K], False shuts the gate of a token: the opposite of
                dead_mask
    eps         of the RMS norms
    clamp       |dot| is at least this under the root
    out         bf16 [T, hc_mult, dim]; may be `hidden`; None: a new array

        dot  = sum(h * q * k * key) * rms(h) * rms(key) / sqrt(dim)
        out  = h + sigmoid(sign(dot) * sqrt(max(|dot|, clamp))) * value

    with rms(x) = 1 / sqrt(mean(x^2) + eps), in fp32.
    """
    if _arrays.compiling() and stream is None:
        from . import torch_ops

        return torch_ops.gate(hidden, kv, q_weight, k_weight, token_mask, eps,
                              clamp, out)
    entered = _arrays.torch_stream(stream, hidden)
    if entered is not None:
        with entered:
            return gate(hidden, kv, q_weight, k_weight, token_mask=token_mask,
                        eps=eps, clamp=clamp, out=out)
    views = {"hidden": _arrays.view(hidden, "hidden", "bf16", 3),
             "kv": _arrays.view(kv, "kv", "bf16", 2),
             "q_weight": _arrays.view(q_weight, "q_weight", "bf16", 2),
             "k_weight": _arrays.view(k_weight, "k_weight", "bf16", 2)}
    tokens, hc_mult, dim = views["hidden"].shape
    if token_mask is not None:
        views["token_mask"] = _arrays.view(token_mask, "token_mask", "bool", 1)
    if out is None:
        out = _arrays.empty_like(hidden, (tokens, hc_mult, dim), "bf16")
    views["out"] = _arrays.view(out, "out", "bf16", 3)
    _run("gate", gate_args(views, eps, clamp), views, stream)
    return out


def gate_args(views: dict[str, View], eps: float,
              clamp: float) -> _abi.GateArgs:
    """struct engram_gate_args, its shapes checked against each other."""
    tokens, hc_mult, dim = views["hidden"].shape
    kv = views["kv"]
    wanted = {"kv": (kv.shape[0], (hc_mult + 1) * dim),
              "q_weight": (hc_mult, dim), "k_weight": (hc_mult, dim),
              "token_mask": (kv.shape[0],), "out": (tokens, hc_mult, dim)}
    _check_shapes(views, wanted)
    args = _abi.GateArgs(
        num_tokens=tokens, hc_mult=hc_mult, dim=dim,
        hidden=views["hidden"].pointer,
        hidden_stride=views["hidden"].strides, kv=kv.pointer,
        kv_stride=kv.strides, num_kv_tokens=kv.shape[0],
        q_weight=views["q_weight"].pointer,
        k_weight=views["k_weight"].pointer,
        q_stride=views["q_weight"].strides,
        k_stride=views["k_weight"].strides, eps=eps, clamp=clamp,
        out_stride=views["out"].strides)
    mask = views.get("token_mask")
    if mask is not None:
        args.token_mask, args.mask_stride = mask.pointer, mask.strides[0]
    return args


def _run(name: str, args: Any, views: dict[str, View], stream: Any) -> None:
    """On the CPU or on the device of the views."""
    devices = {view.device for view in views.values()}
    if len(devices) > 1:
        raise errors.InvalidArgument(
            "arrays of one call must be on one device: " + ", ".join(
                f"{key} on " + ("the CPU" if view.device == CPU else
                                f"cuda:{view.device}")
                for key, view in views.items()), path=next(iter(views)))
    device, = devices
    if device == CPU:
        _library.check(getattr(_library.engram(), name)(
            addressof(args), views["out"].pointer))
        return
    error = _abi.Error()
    function = getattr(_library.cuda(), "cuda_" + name)
    with on_device(device):
        status = function(addressof(args), views["out"].pointer,
                          _arrays.stream_pointer(stream, device),
                          addressof(error))
    if status:
        raise _library.exception(status, error)


class on_device:  # pylint: disable=invalid-name
    """Make a device current, if torch has another one so."""

    def __init__(self, device: int) -> None:
        module = _arrays.torch()
        self._guard = None
        if module is not None and module.cuda.is_initialized() and \
                module.cuda.current_device() != device:
            self._guard = module.cuda.device(device)

    def __enter__(self) -> None:
        if self._guard is not None:
            self._guard.__enter__()

    def __exit__(self, *error: Any) -> None:
        if self._guard is not None:
            self._guard.__exit__(*error)


def sp_rows(gathered: Any, num_tokens: int, total_heads: int, *,
            tp_rank: int, tp_size: int, out: Any = None,
            stream: Any = None) -> Any:
    """This rank's share of the tokens, with the heads in order, after an
    all-gather of every rank's lookup.

    gathered    bf16 [tp_size * num_tokens, local_heads, dim], contiguous
    out         bf16 [ceil(num_tokens / tp_size), total_heads, dim]; tokens
                past num_tokens give zeros
    """
    entered = _arrays.torch_stream(stream, gathered)
    if entered is not None:
        with entered:
            return sp_rows(gathered, num_tokens, total_heads, tp_rank=tp_rank,
                           tp_size=tp_size, out=out)
    source = _arrays.view(gathered, "gathered", "bf16", 3)
    if tp_size < 1 or source.shape[0] != tp_size * num_tokens or \
            source.strides != _arrays.contiguous(source.shape):
        raise errors.InvalidArgument(
            f"gathered: contiguous memory of {tp_size} * {num_tokens} tokens "
            f"wanted, {list(source.shape)} given", path="gathered")
    _, local_heads, dim = source.shape
    shape = (-(-num_tokens // tp_size), total_heads, dim)
    if out is None:
        out = _arrays.empty_like(gathered, shape, "bf16")
    args = _abi.SpRowsArgs(source.pointer, num_tokens, tp_size, tp_rank,
                           local_heads, total_heads, dim)
    _run("sp_rows", args,
         {"gathered": source, "out": _arrays.output(out, "out", "bf16",
                                                    shape)}, stream)
    return out


def float32(bits: Any) -> Any:
    """bf16 as NumPy has it here (uint16) as float32."""
    return (bits.astype("uint32") << 16).view("float32")
