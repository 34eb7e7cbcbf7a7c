# SPDX-License-Identifier: Apache-2.0
"""A table of a running engramd through libengram_cuda, for bench_gather: the
structures of engram.h, engram_cuda.h and engram_cuda_gather.h, field by field
(test_bench_parts.py compares them with the compiler's)."""
import ctypes

import engram_ctypes
from engram_ctypes import I64, INT, P, U32, U64, _fields

AUTO, UVA, HOST, HYBRID = range(4)
REGISTERED, NOT_REGISTERED = 0, 2


class OpenParams(ctypes.Structure):
    _fields_ = _fields((P, "socket name"),
                       (INT, "connect_wait_ms call_timeout_ms"))


class AttachParams(ctypes.Structure):
    _fields_ = _fields((P, "table layers"), (U32, "num_layers tp_rank tp_size"),
                       (INT, "writable"))


class CudaAttachParams(ctypes.Structure):
    _fields_ = _fields((INT, "device placement"), (U64, "chunk_bytes"),
                       (INT, "force_writable"))


class GatherParams(ctypes.Structure):
    _fields_ = _fields((U32, "slots max_rows"), (INT, "timeout_ms no_measuring"))


class LookupParams(ctypes.Structure):
    _fields_ = _fields((P, "ids"),
                       (I64, "ids_token_stride ids_head_stride num_tokens")
                       ) + [("grid", engram_ctypes.Grid)]


class Counters(ctypes.Structure):
    _fields_ = _fields((U64, "posted fallback failed"))


STRUCTURES = {
    "engram_open_params": OpenParams, "engram_attach_params": AttachParams,
    "engram_cuda_attach_params": CudaAttachParams,
    "engram_cuda_gather_params": GatherParams,
    "engram_cuda_lookup_params": LookupParams,
    "engram_cuda_gather_counters": Counters}
CONSTANTS = {"ENGRAM_PATH_AUTO": AUTO, "ENGRAM_PATH_UVA": UVA,
             "ENGRAM_PATH_HOST": HOST, "ENGRAM_PATH_HYBRID": HYBRID,
             "ENGRAM_CUDA_REGISTERED": REGISTERED,
             "ENGRAM_CUDA_HOST": NOT_REGISTERED}


class Client:
    """Use it in a `with`."""

    def __init__(self, path, socket, placement=REGISTERED, measuring=True):
        self._so = engram_ctypes._load(path)
        self._client, self._table, self._gather = P(), P(), P()
        name = ctypes.create_string_buffer(str(socket).encode())
        table = ctypes.create_string_buffer(b"bench")
        self._call("engram_open", OpenParams(
            socket=ctypes.addressof(name), connect_wait_ms=10000),
            ctypes.byref(self._client))
        self._call("engram_cuda_attach", self._client,
                   AttachParams(table=ctypes.addressof(table)),
                   CudaAttachParams(device=-1, placement=placement),
                   ctypes.byref(self._table))
        self._call("engram_cuda_wait", self._table, -1)
        self._call("engram_cuda_gather_open", self._table,
                   GatherParams(no_measuring=not measuring),
                   ctypes.byref(self._gather))

    def _call(self, name, *args):
        args = [ctypes.byref(a) if isinstance(a, ctypes.Structure) else a
                for a in args]
        status = getattr(self._so, name)(*args)
        if status:
            last = self._so.engram_last_error
            last.restype = ctypes.POINTER(engram_ctypes.Error)
            error = last().contents
            raise engram_ctypes.EngramError(
                f"{name}: {error.message.decode()}; {error.fix.decode()}")

    def lookup(self, path, ids, out):
        import torch

        params = LookupParams(ids=ids.data_ptr(),
                              ids_token_stride=ids.stride(0),
                              ids_head_stride=1, num_tokens=ids.shape[0])
        self._call("engram_cuda_gather_lookup", self._gather, 0, params, path,
                   P(out.data_ptr()),
                   P(torch.cuda.current_stream().cuda_stream))

    def path(self, rows):
        return self._so.engram_cuda_gather_path(self._gather, I64(rows))

    def counters(self):
        import torch

        found = Counters()
        self._call("engram_cuda_gather_counters", self._gather,
                   P(torch.cuda.current_stream().cuda_stream), found)
        return {name: getattr(found, name) for name, _ in found._fields_}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        import torch

        torch.cuda.synchronize()
        self._call("engram_cuda_gather_close", self._gather)
        self._call("engram_cuda_detach", self._table)
        self._call("engram_close", self._client)
