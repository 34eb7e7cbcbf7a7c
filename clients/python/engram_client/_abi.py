# SPDX-License-Identifier: Apache-2.0
"""The structures of libengram and libengram_cuda, field by field, as the
headers have them; pointers are plain addresses.  A test compares them with the
compiler's."""
from __future__ import annotations

import struct
from ctypes import (Array, Structure, c_char, c_char_p, c_double, c_float, c_int,
                    c_int32, c_int64, c_uint32, c_uint64, c_void_p, sizeof)
from typing import Any

P = c_void_p
I32, I64, U32, U64 = c_int32, c_int64, c_uint32, c_uint64

FP8_E4M3, BF16 = 1, 2
SCALE_NONE, SCALE_TENSOR, SCALE_UE8M0 = 0, 1, 2
BACKGROUND, FOREGROUND = 0, 1
REGISTERED, DEVICE, HOST = 0, 1, 2
PLACEMENTS = {"registered": REGISTERED, "device": DEVICE, "host": HOST}
PATHS = {"auto": 0, "uva": 1, "host": 2, "hybrid": 3}


def fields(*groups: tuple[Any, str]) -> list[tuple[str, Any]]:
    """Of (type, "names") pairs."""
    return [(name, kind) for kind, names in groups for name in names.split()]


_CODES = {I32: "i", I64: "q", U32: "I", U64: "Q", c_int: "i", P: "P",
          c_float: "f"}


def _codes(kind: Any) -> str:
    if issubclass(kind, Array):
        return _codes(kind._type_) * kind._length_
    if issubclass(kind, Structure):
        return "".join(_codes(field[1]) for field in kind._fields_)
    return _CODES[kind]


def packer(structure: type[Structure]) -> struct.Struct:
    """Makes one of all of its values in order, items of arrays and members of
    structures one by one, several times as fast as ctypes does; a pointer to
    the bytes is what ctypes passes for them."""
    made = struct.Struct("@" + _codes(structure))
    assert made.size == sizeof(structure)
    return made


class Error(Structure):
    _fields_ = [
        ("status", c_int), ("sys_errno", c_int), ("needed", U64),
        ("available", U64), ("path", c_char * 256), ("message", c_char * 768),
        ("fix", c_char * 256)]


# ---- engram_kernels.h ----

class HashParams(Structure):
    _fields_ = fields(
        (U32, "num_layers min_ngram max_ngram num_heads"),
        (P, "multipliers primes offsets token_map"),
        (I64, "token_map_len"), (I32, "pad_id"), (U32, "num_cuts"),
        (I32 * 8, "cut_ids"))


class HashBatch(Structure):
    _fields_ = fields(
        (I64, "num_tokens"),
        (P, "input_ids"), (I64, "input_stride"),
        (P, "dead_mask"), (I64, "dead_stride"),
        (P, "positions"), (I64, "position_stride"),
        (P, "query_start_loc"), (I64, "query_stride num_requests"),
        (P, "lookback_ids"), (I64, "lookback_row_stride lookback_col_stride"),
        (P, "lookback_dead"),
        (I64, "lookback_dead_row_stride lookback_dead_col_stride"),
        (I64, "lookback_depth"),
        (P, "slot_cache"), (I64, "num_slots"),
        (P, "slot_mapping"), (I64, "slot_stride"),
        (P, "block_table"), (I64, "block_row_stride block_col_stride"),
        (I64, "num_block_rows max_blocks block_size"))


class Rows(Structure):
    _fields_ = fields(
        (P, "codes scales"), (I64, "code_stride_bytes scale_stride_bytes"),
        (I64, "row_begin row_end"),
        (U32, "dtype scale_scheme dim block_size"), (c_float, "tensor_scale"))


class LookupArgs(Structure):
    _fields_ = fields(
        (P, "ids"), (I64, "ids_token_stride ids_head_stride num_tokens"),
        (U32, "head_begin local_heads total_heads"), (P, "misses"))


class GateArgs(Structure):
    _fields_ = fields(
        (I64, "num_tokens"), (U32, "hc_mult dim"), (P, "hidden"),
        (I64 * 3, "hidden_stride"), (P, "kv"), (I64 * 2, "kv_stride"),
        (I64, "num_kv_tokens"), (P, "q_weight k_weight"),
        (I64 * 2, "q_stride k_stride"), (P, "token_mask"),
        (I64, "mask_stride"), (c_float, "eps clamp"), (I64 * 3, "out_stride"))


class SpRowsArgs(Structure):
    _fields_ = fields(
        (P, "gathered"), (I64, "num_tokens"), (U32, "tp_size tp_rank"),
        (U32, "local_heads total_heads dim"))


class Shard(Structure):
    _fields_ = fields((U32, "head_begin head_end local_heads"),
                      (I64, "row_begin row_end"))


# ---- engram.h, engram_gather.h ----

class OpenParams(Structure):
    _fields_ = fields((c_char_p, "socket name"),
                      (c_int, "connect_wait_ms call_timeout_ms"))


class AttachParams(Structure):
    _fields_ = fields((c_char_p, "table"), (P, "layers"),
                      (U32, "num_layers tp_rank tp_size"),
                      (c_int, "writable choose_node"), (I32, "node"))


class TableInfo(Structure):
    _fields_ = fields(
        (c_char_p, "name"), (U64, "generation boot_epoch"),
        (c_char * 33, "content_id"),
        (U32, "num_layers tp_rank tp_size num_cols local_heads dim"),
        (U32, "max_ngram num_heads"), (I32, "pad_id"),
        (I64, "token_map_len"), (U64, "mapped_bytes"), (I32, "node"))


class Mapping(Structure):
    _fields_ = fields((P, "address"), (U64, "bytes"))


class LayerInfo(Structure):
    _fields_ = fields(
        (I32, "layer_id"), (Shard, "shard"), (Rows, "rows"),
        (U64, "total_rows"), (Mapping * 2, "mapping"), (U32, "num_mappings"))


class GatherParams(Structure):
    _fields_ = fields((U32, "slots max_rows"), (c_int, "timeout_ms"))


class GatherInfo(Structure):
    _fields_ = fields((U32, "threads"), (U64, "ring_bytes rows_gathered"),
                      (U64, "rows_own timeouts"), (c_int, "stalled"))


# ---- engram_cuda.h, engram_cuda_kernels.h, engram_cuda_gather.h ----

class Descriptor(Structure):
    _fields_ = fields((Rows, "rows"), (U64, "generation epoch"))


class Source(Structure):
    _fields_ = fields((Rows, "rows"), (P, "descriptor"), (c_int, "resident"))


class Grid(Structure):
    _fields_ = fields((U32, "blocks"), (c_int, "hint"))


class Step(Structure):
    _fields_ = fields((P, "sources outs ids"), (U32, "head_begin local_heads"),
                      (P, "misses rejects"))


class CudaAttachParams(Structure):
    _fields_ = fields((c_int, "device placement"), (U64, "chunk_bytes"),
                      (c_int, "force_writable"))


class CudaProgress(Structure):
    _fields_ = fields((c_int, "ready status"), (U64, "done_bytes total_bytes"),
                      (c_double, "seconds"))


class CudaInfo(Structure):
    _fields_ = fields((c_int, "device placement read_only"), (U32, "chunks"),
                      (U64, "registered_bytes device_bytes"),
                      (c_double, "register_seconds"))


class CudaLookupParams(Structure):
    _fields_ = fields(
        (P, "ids"), (I64, "ids_token_stride ids_head_stride num_tokens"),
        (Grid, "grid"))


class CudaCounters(Structure):
    _fields_ = fields((U64, "misses rejects"))


class CudaGatherParams(Structure):
    _fields_ = fields((U32, "slots max_rows"),
                      (c_int, "timeout_ms no_measuring"),
                      (U32, "prefetch_slots"), (U64, "cache_bytes"),
                      (c_int, "deduplicate"), (U32, "sieve_min_rows"))


class CudaGatherCounters(Structure):
    _fields_ = fields((U64, "posted fallback failed"))


class CudaGatherStats(Structure):
    _fields_ = fields((U64, "entries device_bytes rows hits repeats fills"))


# By their names in C, without "engram_".
STRUCTURES = {
    "error": Error, "hash_params": HashParams, "hash_batch": HashBatch,
    "rows": Rows, "lookup_args": LookupArgs, "gate_args": GateArgs,
    "sp_rows_args": SpRowsArgs, "shard": Shard, "open_params": OpenParams,
    "attach_params": AttachParams, "table_info": TableInfo,
    "mapping": Mapping, "layer_info": LayerInfo,
    "gather_params": GatherParams, "gather_info": GatherInfo}
CUDA_STRUCTURES = {
    "cuda_descriptor": Descriptor, "cuda_source": Source, "cuda_grid": Grid,
    "cuda_step": Step, "cuda_attach_params": CudaAttachParams,
    "cuda_progress": CudaProgress, "cuda_info": CudaInfo,
    "cuda_lookup_params": CudaLookupParams, "cuda_counters": CudaCounters,
    "cuda_gather_params": CudaGatherParams,
    "cuda_gather_counters": CudaGatherCounters,
    "cuda_gather_stats": CudaGatherStats}

# Result and arguments of each function.  All pointers are addresses.
FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {}


def _declare(result: Any, name: str, *arguments: Any) -> None:
    FUNCTIONS["engram_" + name] = result, list(arguments)


_declare(c_char_p, "version")
_declare(P, "last_error")
_declare(c_int, "open", P, P)
_declare(c_int, "close", P)
_declare(U64, "boot_epoch", P)
_declare(c_char_p, "server_version", P)
_declare(c_int, "attach", P, P, P)
_declare(c_int, "detach", P)
_declare(c_int, "table_info", P, P)
_declare(U64, "table_poll", P)
_declare(c_int, "table_park", P)
_declare(c_int, "table_prepare", P, P)
_declare(c_int, "table_swap", P, U64, P)
_declare(c_int, "layer_info", P, U32, P)
_declare(c_int, "hash_params", P, P)
_declare(c_int, "hash", P, P, P)
_declare(c_int, "lookup", P, U32, P, I64, I64, I64, P, P)
_declare(c_int, "read_rows", P, U32, P, U64, P)
_declare(U64, "record_bytes", P)
_declare(c_int, "gate", P, P)
_declare(c_int, "sp_rows", P, P)
_declare(c_int, "gather_open", P, P, P)
_declare(c_int, "gather_close", P)
_declare(c_int, "gather_lookup", P, U32, P, I64, I64, I64, P, P)
_declare(c_int, "gather_post", P, U32, P, I64, I64, I64)
_declare(c_int, "gather_take", P, P, P)
_declare(c_int, "gather_info", P, P)
_declare(c_char_p, "cuda_version")
_declare(c_int, "cuda_attach", P, P, P, P)
_declare(c_int, "cuda_detach", P)
_declare(c_int, "cuda_wait", P, c_int)
_declare(c_int, "cuda_table_park", P, P)
_declare(c_int, "cuda_table_prepare", P, P)
_declare(c_int, "cuda_table_refresh", P, U64, P)
_declare(c_int, "cuda_progress", P, P)
_declare(c_int, "cuda_info", P, P)
_declare(P, "cuda_host_table", P)
_declare(c_int, "cuda_table_hash", P, P, P, P)
_declare(c_int, "cuda_table_lookup", P, U32, P, P, P)
_declare(c_int, "cuda_counters", P, P, P)
_declare(c_int, "cuda_gate", P, P, P, P)
_declare(c_int, "cuda_sp_rows", P, P, P, P)
_declare(c_int, "cuda_gather_open", P, P, P)
_declare(c_int, "cuda_gather_close", P)
_declare(c_int, "cuda_gather_lookup", P, U32, P, c_int, P, P)
_declare(c_int, "cuda_gather_prefetch", P, U32, P, I64, I64, I64, P)
_declare(c_int, "cuda_gather_take", P, P, P, P)
_declare(None, "cuda_gather_wake", P)
_declare(c_int, "cuda_gather_counters", P, P, P)
_declare(c_int, "cuda_gather_stats", P, P)
