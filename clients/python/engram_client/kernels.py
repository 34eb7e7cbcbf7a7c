# SPDX-License-Identifier: Apache-2.0
"""Computations of a layer that need no table: gate, sequence-parallel rows.
Arrays, devices and streams are as engram_client.Table says."""
from __future__ import annotations

import struct
from ctypes import addressof
from typing import Any

from . import _abi, _arrays, _library, errors
from ._arrays import CPU, NO_VIEW, View

CLAMP = 1e-6

_pack_hash_batch = _abi.packer(_abi.HashBatch).pack
_pack_gate_args = _abi.packer(_abi.GateArgs).pack


def _check_shapes(views: dict[str, View],
                  wanted: dict[str, tuple[int, ...]]) -> None:
    for name, shape in wanted.items():
        if name in views and views[name].shape != shape:
            raise errors.InvalidArgument(
                f"{name}: shape {list(shape)} wanted, "
                f"{list(views[name].shape)} given", path=name)


def hash_batch(views: dict[str, View], block_size: int) -> bytes:
    """struct engram_hash_batch, its shapes checked against each other."""
    get = views.get
    ids, positions = views["input_ids"], views["positions"]
    bounds = views["query_start_loc"]
    dead, mapping = get("dead_mask", NO_VIEW), get("slot_mapping", NO_VIEW)
    lookback = get("lookback_ids", NO_VIEW)
    lookback_dead = get("lookback_dead", NO_VIEW)
    cache, table = get("slot_cache", NO_VIEW), get("block_table", NO_VIEW)
    tokens, requests = ids.shape[0], bounds.shape[0] - 1
    wanted: dict[str, tuple[int, ...]] = {}
    if len(views) > 4:
        wanted = {"dead_mask": (tokens,), "slot_mapping": (tokens,)}
        if lookback is not NO_VIEW:
            wanted["lookback_ids"] = (requests, lookback.shape[1])
            wanted["lookback_dead"] = (requests, lookback.shape[1])
    if wanted or positions.shape[0] != tokens:
        _check_shapes(views, {"positions": (tokens,), **wanted})
    if cache.strides[0] != 1 and cache.shape[0] > 1:
        raise errors.InvalidArgument(
            "slot_cache: contiguous memory wanted", path="slot_cache")
    try:
        return _pack_hash_batch(
            tokens, ids.pointer, ids.strides[0], dead.pointer,
            dead.strides[0], positions.pointer, positions.strides[0],
            bounds.pointer, bounds.strides[0], requests, lookback.pointer,
            *lookback.strides, lookback_dead.pointer, *lookback_dead.strides,
            lookback.shape[1], cache.pointer, cache.shape[0],
            mapping.pointer, mapping.strides[0], table.pointer,
            *table.strides, *table.shape, block_size)
    except struct.error:
        raise errors.InvalidArgument(
            f"block_size: {block_size!r} is no number of slots",
            path="block_size") from None


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
    view = _arrays.view
    h, rows = view(hidden, "hidden", "bf16", 3), view(kv, "kv", "bf16", 2)
    q = view(q_weight, "q_weight", "bf16", 2)
    k = view(k_weight, "k_weight", "bf16", 2)
    mask = NO_VIEW if token_mask is None else \
        view(token_mask, "token_mask", "bool", 1)
    if out is None:
        out = _arrays.empty_like(hidden, h.shape, "bf16")
    to = view(out, "out", "bf16", 3)
    device = h.device
    if rows.device != device or q.device != device or k.device != device or \
            to.device != device or \
            (mask is not NO_VIEW and mask.device != device):
        raise _several_devices(_gate_views(h, rows, q, k, mask, to))
    args = gate_args(h, rows, q, k, mask, to, eps, clamp)
    if device == CPU:
        _library.check(_library.engram().gate(args, to.pointer))
    else:
        _launch(_library.cuda().cuda_gate, args, to, stream)
    return out


def _gate_views(hidden: View, kv: View, q_weight: View, k_weight: View,
                mask: View, out: View) -> dict[str, View]:
    views = {"hidden": hidden, "kv": kv, "q_weight": q_weight,
             "k_weight": k_weight, "token_mask": mask, "out": out}
    return {name: view for name, view in views.items() if view is not NO_VIEW}


def gate_args(hidden: View, kv: View, q_weight: View, k_weight: View,
              mask: View, out: View, eps: float, clamp: float) -> bytes:
    """struct engram_gate_args, its shapes checked against each other."""
    shape = hidden.shape
    tokens, hc_mult, dim = shape
    kv_tokens, width = kv.shape
    if width != (hc_mult + 1) * dim or out.shape != shape or \
            q_weight.shape != shape[1:] or k_weight.shape != shape[1:] or \
            (mask is not NO_VIEW and mask.shape[0] != kv_tokens):
        _check_shapes(
            _gate_views(hidden, kv, q_weight, k_weight, mask, out),
            {"kv": (kv_tokens, (hc_mult + 1) * dim),
             "q_weight": (hc_mult, dim), "k_weight": (hc_mult, dim),
             "token_mask": (kv_tokens,), "out": (tokens, hc_mult, dim)})
    try:
        return _pack_gate_args(
            tokens, hc_mult, dim, hidden.pointer, *hidden.strides, kv.pointer,
            *kv.strides, kv_tokens, q_weight.pointer, k_weight.pointer,
            *q_weight.strides, *k_weight.strides, mask.pointer,
            mask.strides[0], eps, clamp, *out.strides)
    except (struct.error, OverflowError):
        raise errors.InvalidArgument(
            f"eps and clamp: two floats wanted, {eps!r} and {clamp!r} given",
            path="eps") from None


def _several_devices(views: dict[str, View]) -> errors.EngramError:
    return errors.InvalidArgument(
        "arrays of one call must be on one device: " + ", ".join(
            f"{key} on " + ("the CPU" if view.device == CPU else
                            f"cuda:{view.device}")
            for key, view in views.items()), path=next(iter(views)))


def _launch(function: Any, args: Any, out: View, stream: Any) -> None:
    """With the device of `out` current."""
    error = _abi.Error()
    pointer, guard = _arrays.launching(stream, out.device)
    if guard is None:
        status = function(args, out.pointer, pointer, addressof(error))
    else:
        with guard:
            status = function(args, out.pointer, pointer, addressof(error))
    if status:
        raise _library.exception(status, error)


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
    to = _arrays.output(out, "out", "bf16", shape)
    if to.device != source.device:
        raise _several_devices({"gathered": source, "out": to})
    if to.device == CPU:
        _library.check(_library.engram().sp_rows(addressof(args), to.pointer))
    else:
        _launch(_library.cuda().cuda_sp_rows, addressof(args), to, stream)
    return out


def float32(bits: Any) -> Any:
    """bf16 as NumPy has it here (uint16) as float32."""
    return (bits.astype("uint32") << 16).view("float32")
