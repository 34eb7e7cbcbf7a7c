# SPDX-License-Identifier: Apache-2.0
"""Operators of torch, so that torch.compile keeps calls on a table in its graph:
engram::hash, engram::lookup, engram::gate.  They write to `out`; tables are
named by number.  Nothing here is called unless torch is in use."""
from __future__ import annotations

import warnings
from typing import Any

import torch

from . import _arrays, kernels
from ._arrays import CPU, DeviceMemory, Memory
from .table import Table, table_of

_library = torch.library.Library("engram", "FRAGMENT")
_SCHEMAS = {
    "lookup": "(Tensor hash_ids, Tensor(a!) out, int table, int layer, "
              "bool background) -> ()",
    "hash": "(Tensor input_ids, Tensor positions, Tensor query_start_loc, "
            "Tensor? dead_mask, Tensor? lookback_ids, Tensor? lookback_dead, "
            "Tensor(a!)? slot_cache, Tensor? slot_mapping, "
            "Tensor? block_table, Tensor(b!) out, int table, int block_size)"
            " -> ()",
    "gate": "(Tensor hidden, Tensor kv, Tensor q_weight, Tensor k_weight, "
            "Tensor? token_mask, Tensor(a!) out, float eps, float clamp)"
            " -> ()"}


def _lookup_op(hash_ids: Any, out: Any, table: int, layer: int,
               background: bool) -> None:
    table_of(table).lookup(hash_ids, layer, out=out, background=background)


def _hash_op(input_ids: Any, positions: Any, query_start_loc: Any,
             dead_mask: Any, lookback_ids: Any, lookback_dead: Any,
             slot_cache: Any, slot_mapping: Any, block_table: Any, out: Any,
             table: int, block_size: int) -> None:
    table_of(table).hash(
        input_ids, positions, query_start_loc, dead_mask=dead_mask,
        lookback_ids=lookback_ids, lookback_dead=lookback_dead,
        slot_cache=slot_cache, slot_mapping=slot_mapping,
        block_table=block_table, block_size=block_size, out=out)


def _gate_op(hidden: Any, kv: Any, q_weight: Any, k_weight: Any,
             token_mask: Any, out: Any, eps: float, clamp: float) -> None:
    kernels.gate(hidden, kv, q_weight, k_weight, token_mask=token_mask,
                 out=out, eps=eps, clamp=clamp)


def _define() -> None:
    for name, operator in (("lookup", _lookup_op), ("hash", _hash_op),
                           ("gate", _gate_op)):
        _library.define(name + _SCHEMAS[name],
                        tags=(torch.Tag.pt2_compliant_tag,))
        for key in ("CPU", "CUDA"):
            _library.impl(name, operator, key)
        torch.library.register_fake(f"engram::{name}", lambda *args: None,
                                    lib=_library)


if hasattr(torch.library, "register_fake"):  # from 2.4 on
    _define()


# ---- what Table's methods are while torch compiles; traced, so only torch ----

def lookup(table: Table, hash_ids: Any, layer: int | None, out: Any,
           background: bool) -> Any:
    if layer is None:
        layer = table.layers[table._index(None)]
    if out is None:
        out = torch.empty((hash_ids.shape[0], table.local_heads, table.dim),
                          dtype=torch.bfloat16, device=hash_ids.device)
    torch.ops.engram.lookup(hash_ids, out, table._number, layer, background)
    return out


def hash(table: Table,  # pylint: disable=redefined-builtin
         input_ids: Any, positions: Any, query_start_loc: Any,
         dead_mask: Any, lookback_ids: Any, lookback_dead: Any,
         slot_cache: Any, slot_mapping: Any, block_table: Any,
         block_size: int, out: Any) -> Any:
    tokens = input_ids.shape[0]
    if positions is None:
        positions = torch.arange(tokens, device=input_ids.device)
    if query_start_loc is None:
        query_start_loc = torch.arange(
            2, device=input_ids.device, dtype=torch.int32) * tokens
    if out is None:
        out = torch.empty((tokens, len(table.layers), table.num_cols),
                          dtype=torch.int32, device=input_ids.device)
    torch.ops.engram.hash(input_ids, positions, query_start_loc, dead_mask,
                          lookback_ids, lookback_dead, slot_cache,
                          slot_mapping, block_table, out, table._number,
                          block_size)
    return out


def gate(hidden: Any, kv: Any, q_weight: Any, k_weight: Any, token_mask: Any,
         eps: float, clamp: float, out: Any) -> Any:
    if out is None:
        out = torch.empty_like(hidden, memory_format=torch.contiguous_format)
    torch.ops.engram.gate(hidden, kv, q_weight, k_weight, token_mask, out,
                          eps, clamp)
    return out


# ---- views ----

def tensor(memory: Memory, device: int, dtype: str) -> Any:
    """A tensor of mapped memory, on the CPU or as a device sees it."""
    if device == CPU:
        with warnings.catch_warnings():
            # torch has no read-only tensors, and says so
            warnings.filterwarnings("ignore", message=".*not writable.*")
            result = torch.from_numpy(_arrays.numpy_module().asarray(memory))
    else:
        result = torch.as_tensor(DeviceMemory(memory),
                                 device=f"cuda:{device}")
    return result.view(getattr(torch, dtype)) if dtype else result
