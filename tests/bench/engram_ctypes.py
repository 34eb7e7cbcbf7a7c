# SPDX-License-Identifier: Apache-2.0
"""libengram_cuda.so through ctypes, for the benchmarks.

Structures are those of engram_kernels.h and engram_cuda_kernels.h, field by
field (test_bench_layout.py compares them with the compiler's).  Pointers are
plain addresses: tensor.data_ptr().  The calls go to torch's current stream.
"""
import ctypes
import pathlib

P = ctypes.c_void_p
I32 = ctypes.c_int32
I64 = ctypes.c_int64
U32 = ctypes.c_uint32
U64 = ctypes.c_uint64
F32 = ctypes.c_float
INT = ctypes.c_int

FP8_E4M3 = 1
SCALE_UE8M0 = 2
BACKGROUND = 0
FOREGROUND = 1


def _fields(*groups):
    """Fields of (type, "names") pairs."""
    return [(name, kind) for kind, names in groups for name in names.split()]


class HashParams(ctypes.Structure):
    _fields_ = _fields(
        (U32, "num_layers min_ngram max_ngram num_heads"),
        (P, "multipliers primes offsets token_map"),
        (I64, "token_map_len"), (I32, "pad_id"), (U32, "num_cuts"),
        (I32 * 8, "cut_ids"))


class HashBatch(ctypes.Structure):
    _fields_ = _fields(
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


class Rows(ctypes.Structure):
    _fields_ = _fields(
        (P, "codes scales"), (I64, "code_stride_bytes scale_stride_bytes"),
        (I64, "row_begin row_end"),
        (U32, "dtype scale_scheme dim block_size"), (F32, "tensor_scale"))


class LookupArgs(ctypes.Structure):
    _fields_ = _fields(
        (P, "ids"), (I64, "ids_token_stride ids_head_stride num_tokens"),
        (U32, "head_begin local_heads total_heads"), (P, "misses"))


class Descriptor(ctypes.Structure):
    _fields_ = [("rows", Rows), ("generation", U64)]


class Source(ctypes.Structure):
    _fields_ = [("rows", Rows), ("descriptor", P), ("resident", INT)]


class Grid(ctypes.Structure):
    _fields_ = [("blocks", U32), ("hint", INT)]


class Step(ctypes.Structure):
    _fields_ = _fields(
        (P, "sources outs ids"), (U32, "head_begin local_heads"),
        (P, "misses rejects"))


class GateArgs(ctypes.Structure):
    _fields_ = _fields(
        (I64, "num_tokens"), (U32, "hc_mult dim"), (P, "hidden")) + [
        ("hidden_stride", I64 * 3), ("kv", P), ("kv_stride", I64 * 2),
        ("num_kv_tokens", I64), ("q_weight", P), ("k_weight", P),
        ("q_stride", I64 * 2), ("k_stride", I64 * 2), ("token_mask", P),
        ("mask_stride", I64), ("eps", F32), ("clamp", F32),
        ("out_stride", I64 * 3)]


class Error(ctypes.Structure):
    _fields_ = [
        ("status", INT), ("sys_errno", INT), ("needed", U64),
        ("available", U64), ("path", ctypes.c_char * 256),
        ("message", ctypes.c_char * 768), ("fix", ctypes.c_char * 256)]


# Name in C of each.
STRUCTURES = {
    "engram_hash_params": HashParams, "engram_hash_batch": HashBatch,
    "engram_rows": Rows, "engram_lookup_args": LookupArgs,
    "engram_cuda_descriptor": Descriptor, "engram_cuda_source": Source,
    "engram_cuda_grid": Grid, "engram_cuda_step": Step, "engram_gate_args": GateArgs,
    "engram_error": Error}
CONSTANTS = {
    "ENGRAM_CUDA_BACKGROUND": BACKGROUND,
    "ENGRAM_CUDA_FOREGROUND": FOREGROUND}


class EngramError(RuntimeError):
    """Status, message and fix of a call that failed."""


def _load(path):
    path = pathlib.Path(path).resolve()
    if not path.exists():
        raise EngramError(f"{path} is not there: build it with `make` on a "
                          "machine with nvcc, or give --lib")
    # What it may depend on lies beside it and in no search path.
    for beside in sorted(path.parent.glob("libengram.so.*")):
        ctypes.CDLL(str(beside), mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(path))


class Library:
    """The kernels.  A failed call raises EngramError."""

    def __init__(self, path):
        self.path = str(path)
        self._so = _load(path)
        self._error = Error()
        self._hash = self._function("hash", 6)
        self._lookup = self._function("lookup", 6)
        self._gate = self._function("gate", 4)
        self._hash_lookup = self._function("hash_lookup", 6)

    def _function(self, name, arguments):
        function = getattr(self._so, "engram_cuda_" + name)
        function.argtypes = [P] * arguments
        function.restype = INT
        return function

    def _call(self, function, *args):
        import torch

        args = [ctypes.addressof(a) if isinstance(a, ctypes.Structure) else a
                for a in args]
        status = function(*args, torch.cuda.current_stream().cuda_stream,
                          ctypes.addressof(self._error))
        if status:
            raise EngramError(
                f"status {status}: {self._error.message.decode()}; "
                f"{self._error.fix.decode()}")

    def hash(self, params, batch, out, rejects=None):
        self._call(self._hash, params, batch, out, rejects)

    def lookup(self, source, args, out, grid=None):
        self._call(self._lookup, source, args, out, grid)

    def hash_lookup(self, params, batch, step, grid=None):
        self._call(self._hash_lookup, params, batch, step, grid)

    def gate(self, args, out):
        self._call(self._gate, args, out)
