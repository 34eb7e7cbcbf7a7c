# SPDX-License-Identifier: Apache-2.0
"""Lookups whose rows engramd's threads gather."""
from __future__ import annotations

import ctypes
from ctypes import addressof
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _abi, _arrays, _library, errors
from ._arrays import CPU
from .table import lookup_params

if TYPE_CHECKING:
    from .table import Table


class GatherCounters(NamedTuple):
    """Since Table.gather."""

    gathered: int  # rows by engramd (on a GPU: batches posted)
    own: int       # rows read here instead
    failed: int    # rows that are zeros, since nobody could read them


class GatherStats(NamedTuple):
    """Of lookups through a cache, or with repeated rows gathered once."""

    entries: int       # rows that the cache has room for
    device_bytes: int  # of it, and of what finds repeated rows
    rows: int          # looked up
    hits: int          # in the cache
    repeats: int       # others that were in the batch before
    fills: int         # rows that the cache took


class Gather:
    """The rows of Table.lookup, bit for bit; what engramd does not deliver in
    time is read here.  For one thread (on a GPU: one stream) at a time; a
    context manager that closes.  Close it before the table is detached.
    """

    def __init__(self, table: Table, slots: int, max_rows: int,
                 timeout_ms: int, prefetch: int, cache_bytes: int,
                 deduplicate: bool) -> None:
        mapping = table._mapped()
        self._table = table
        self._pointer: int | None = None
        self._posted: list[tuple[int, Any]] = []
        made = ctypes.c_void_p()
        if mapping.cuda:
            self._lib, self._prefix = _library.cuda(), "cuda_gather_"
            params: Any = _abi.CudaGatherParams(
                slots, max_rows, timeout_ms, 0, prefetch, cache_bytes,
                int(deduplicate))
            handle: int | None = mapping.cuda
        else:
            self._lib, self._prefix = _library.engram(), "gather_"
            params = _abi.GatherParams(slots, max_rows, timeout_ms)
            handle = mapping.table
        _library.check(self._c("open")(handle, addressof(params),
                                       addressof(made)))
        self._pointer = made.value

    def _c(self, name: str) -> Any:
        return getattr(self._lib, self._prefix + name)

    def _open(self) -> int:
        if self._pointer is None:
            raise errors.InvalidArgument("this gather handle is closed")
        self._table._mapped()
        return self._pointer

    def __enter__(self) -> Gather:
        return self

    def __exit__(self, kind: type[BaseException] | None,
                 error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """On a GPU the stream must be synchronised before."""
        pointer, self._pointer = self._pointer, None
        if pointer is not None:
            _library.check(self._c("close")(pointer))

    def lookup(self, hash_ids: Any, layer: int | None = None, *,
               path: str = "auto", out: Any = None, stream: Any = None) -> Any:
        """Table.lookup, whoever reads the rows.

        path  on a GPU: "auto", by size, as measured when this was opened;
              "uva", as Table.lookup; "host", gathered; "hybrid", both at once
        """
        entered = _arrays.torch_stream(stream, hash_ids)
        if entered is not None:
            with entered:
                return self.lookup(hash_ids, layer, path=path, out=out)
        table = self._table
        pointer = self._open()
        index = table._index(layer)
        hash_ids = _arrays.int32(hash_ids, "hash_ids")
        ids = table._layer_ids(hash_ids, index)
        shape = (ids.shape[0], table.local_heads, table.dim)
        if out is None:
            out = _arrays.empty_like(hash_ids, shape, "bf16")
        to = _arrays.output(out, "out", "bf16", shape)
        if path not in _abi.PATHS:
            raise errors.InvalidArgument(
                f"path: {path!r} is not known", path="path",
                fix="use one of " + ", ".join(_abi.PATHS))
        if table.device == CPU:
            table._device_of({"hash_ids": ids, "out": to})
            misses = ctypes.c_uint64()
            _library.check(self._c("lookup")(
                pointer, index, ids.pointer, *ids.strides, ids.shape[0],
                to.pointer, addressof(misses)))
            table._misses += misses.value
            return out
        self._on_device(ids, to)
        params = lookup_params(ids, True)
        table._launch(stream, lambda at: self._c("lookup")(
            pointer, index, params, _abi.PATHS[path], to.pointer,
            at))
        return out

    def _on_device(self, ids: _arrays.View, out: _arrays.View) -> None:
        if ids.device != out.device or ids.device != self._table.device:
            raise errors.InvalidArgument(
                f"hash_ids and out must be on cuda:{self._table.device}",
                path="hash_ids")

    def post(self, hash_ids: Any, layer: int | None = None) -> None:
        """Have rows gathered while something else is done, for ids that the
        host knows early.  The ids are in host memory (Table.hash gives them
        for arrays on the CPU, whatever the table's device) and are copied.

        At most `slots` batches of `max_rows` at once, on a GPU `prefetch`:
        Busy, also on a GPU while the stream has not read the one that was
        taken last from the same slot.
        """
        table = self._table
        pointer = self._open()
        index = table._index(layer)
        hash_ids = _arrays.int32(hash_ids, "hash_ids")
        ids = table._layer_ids(hash_ids, index)
        if ids.device != CPU:
            raise errors.InvalidArgument(
                f"hash_ids: in host memory wanted, on cuda:{ids.device} "
                "given", path="hash_ids",
                fix="lookup takes ids that are on the device")
        if table.device == CPU:
            _library.check(self._c("post")(pointer, index, ids.pointer,
                                           *ids.strides, ids.shape[0]))
        else:
            misses = ctypes.c_uint64()
            _library.check(self._c("prefetch")(
                pointer, index, ids.pointer, *ids.strides, ids.shape[0],
                addressof(misses)))
            table._misses += misses.value
        self._posted.append((ids.shape[0], _arrays.is_tensor(hash_ids)))

    def take(self, out: Any = None, *, stream: Any = None) -> Any:
        """The rows of the oldest batch posted, bf16 [T, local_heads, dim];
        NotFound when there is none.  On a GPU the stream waits for them, the
        caller does not; not while the stream is captured: a batch is taken
        once.  What it was posted for is of the generation that is current."""
        table = self._table
        pointer = self._open()
        if not self._posted:
            raise errors.NotFound("no batch was posted")
        tokens, tensor = self._posted[0]
        shape = (tokens, table.local_heads, table.dim)
        if table.device != CPU:
            return self._take_on_device(pointer, shape, out, stream)
        if out is None:
            like = _arrays.torch().empty(0) if tensor else None
            out = _arrays.empty_like(like, shape, "bf16")
        to = _arrays.output(out, "out", "bf16", shape)
        table._device_of({"out": to})
        misses = ctypes.c_uint64()
        _library.check(self._c("take")(pointer, to.pointer,
                                       addressof(misses)))
        del self._posted[0]
        table._misses += misses.value
        return out

    def _take_on_device(self, pointer: int, shape: tuple[int, ...], out: Any,
                        stream: Any) -> Any:
        table = self._table
        if out is None:
            out = _arrays.empty_on(table.device, shape, "bf16", stream)
        to = _arrays.output(out, "out", "bf16", shape)
        if to.device != table.device:
            raise errors.InvalidArgument(
                f"out must be on cuda:{table.device}", path="out")
        table._launch(stream, lambda at: self._c("take")(pointer, to.pointer,
                                                         None, at))
        del self._posted[0]
        return out

    def wake(self) -> None:
        """On a GPU, before a graph of lookups is replayed after a pause:
        engramd's threads sleep then, and look once a millisecond only."""
        if self._table.device != CPU:
            self._c("wake")(self._open())

    def counters(self, stream: Any = None) -> GatherCounters:
        """On a GPU it waits for the stream, which must not be captured."""
        pointer = self._open()
        if self._table.device == CPU:
            info = _abi.GatherInfo()
            _library.check(self._c("info")(pointer, addressof(info)))
            return GatherCounters(info.rows_gathered, info.rows_own, 0)
        found = _abi.CudaGatherCounters()
        at = _arrays.stream_pointer(stream, self._table.device)
        _library.check(self._c("counters")(pointer, at, addressof(found)))
        return GatherCounters(found.posted, found.fallback, found.failed)

    def stats(self) -> GatherStats:
        """As of some moment ago: nothing is waited for.  Zeros without a
        GPU."""
        pointer = self._open()
        found = _abi.CudaGatherStats()
        if self._table.device != CPU:
            _library.check(self._c("stats")(pointer, addressof(found)))
        return GatherStats(*(getattr(found, name)
                             for name in GatherStats._fields))
