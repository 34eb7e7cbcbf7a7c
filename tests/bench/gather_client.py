# SPDX-License-Identifier: Apache-2.0
"""A table of a running engramd through libengram_cuda, for bench_gather."""
import ctypes

import engram_ctypes
from engram_client._abi import (
    AttachParams, CudaAttachParams, CudaGatherCounters, CudaGatherParams,
    CudaGatherStats, CudaLookupParams, OpenParams)
from engram_client._abi import HOST as NOT_REGISTERED
from engram_client._abi import REGISTERED
from engram_ctypes import I64, P

AUTO, UVA, HOST, HYBRID = range(4)


class Client:
    """Use it in a `with`."""

    def __init__(self, path, socket, placement=REGISTERED, measuring=True,
                 cache_bytes=0, deduplicate=0):
        self._so = engram_ctypes._load(path)
        self._client, self._table, self._gather = P(), P(), P()
        self._call("engram_open", OpenParams(
            socket=str(socket).encode(), connect_wait_ms=10000),
            ctypes.byref(self._client))
        self._call("engram_cuda_attach", self._client,
                   AttachParams(table=b"bench"),
                   CudaAttachParams(device=-1, placement=placement),
                   ctypes.byref(self._table))
        self._call("engram_cuda_wait", self._table, -1)
        self._call("engram_cuda_gather_open", self._table,
                   CudaGatherParams(no_measuring=not measuring,
                                    cache_bytes=cache_bytes,
                                    deduplicate=deduplicate,
                                    sieve_min_rows=1),
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

        params = CudaLookupParams(ids=ids.data_ptr(),
                                  ids_token_stride=ids.stride(0),
                                  ids_head_stride=1,
                                  num_tokens=ids.shape[0])
        self._call("engram_cuda_gather_lookup", self._gather, 0, params, path,
                   P(out.data_ptr()),
                   P(torch.cuda.current_stream().cuda_stream))

    def path(self, rows):
        return self._so.engram_cuda_gather_path(self._gather, I64(rows))

    def stats(self):
        found = CudaGatherStats()
        self._call("engram_cuda_gather_stats", self._gather, found)
        return {name: getattr(found, name) for name, _ in found._fields_}

    def counters(self):
        import torch

        found = CudaGatherCounters()
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
