# SPDX-License-Identifier: Apache-2.0
"""Handles of C: a lease and what is mapped under it."""
from __future__ import annotations

import atexit
import ctypes
import threading
import weakref
from collections.abc import Sequence
from ctypes import addressof
from typing import Any

from . import _abi, _library, errors
from ._arrays import CPU, Memory, torch

WAIT_SLICE_MS = 200

_cuda_mappings: weakref.WeakSet[Mapping] = weakref.WeakSet()


def cuda_ordinal(device: Any) -> int:
    """CPU, or the number of a CUDA device; -1 is CPU there, so "the current
    one" is looked up."""
    kind = getattr(device, "type", None)
    index = getattr(device, "index", None)
    if isinstance(device, int):
        kind, index = "cuda", device
    elif isinstance(device, str):
        kind, _, rest = device.partition(":")
        if rest and not rest.isdigit():
            kind = "?"
        index = int(rest) if rest.isdigit() else None
    if device is None or kind == "cpu":
        return CPU
    if kind != "cuda" or (index is not None and index < 0):
        raise errors.InvalidArgument(
            f"device: {device!r} is neither the CPU nor a CUDA device",
            path="device", fix='use "cpu", "cuda" or "cuda:N"')
    if index is not None:
        return int(index)
    module = torch()
    if module is not None and module.cuda.is_available():
        return int(module.cuda.current_device())
    return 0


class _Replaced:
    """What was mapped before a refresh, for the views that look at it."""

    def __init__(self) -> None:
        self.views = 0
        self.table: int | None = None  # once it is replaced

    def let_go(self) -> None:
        if self.table and not self.views:
            table, self.table = self.table, None
            _library.check(_library.engram().detach(table))


class Mapping:
    """Users: the table, and each view.  The last one unmaps.

    `table` and `cuda` are the addresses of an engram_table and of an
    engram_cuda_table, or None.
    """

    def __init__(self, socket: str, name: str, timeout: float | None) -> None:
        lib = _library.engram()
        client = ctypes.c_void_p()
        params = _abi.OpenParams(
            socket=socket.encode(), name=name.encode(),
            call_timeout_ms=-1 if timeout is None else
            max(1, int(timeout * 1000)))
        _library.check(lib.open(addressof(params), addressof(client)))
        self._client = client.value
        self.table: int | None = None
        self.cuda: int | None = None
        self._users = 1
        self._looked_at = _Replaced()  # once it is
        # a view may go, by garbage collection, wherever it is held
        self._lock = threading.RLock()

    def attach(self, table: str, layers: Sequence[int] | None, tp_rank: int,
               tp_size: int, device: int, placement: str,
               chunk_bytes: int, node: int | None) -> None:
        ids = None if layers is None else \
            (ctypes.c_int32 * len(layers))(*layers)
        params = _abi.AttachParams(
            table=table.encode(), layers=ids and addressof(ids),
            num_layers=0 if layers is None else len(layers), tp_rank=tp_rank,
            tp_size=tp_size, choose_node=node is not None, node=node or 0)
        made = ctypes.c_void_p()
        if device == CPU:
            _library.check(_library.engram().attach(
                self._client, addressof(params), addressof(made)))
            self.table = made.value
            return
        if placement not in _abi.PLACEMENTS:
            raise errors.InvalidArgument(
                f"placement: {placement!r} is not known", path="placement",
                fix="use one of " + ", ".join(_abi.PLACEMENTS))
        lib = _library.cuda()
        how = _abi.CudaAttachParams(
            device=device, placement=_abi.PLACEMENTS[placement],
            chunk_bytes=chunk_bytes)
        _library.check(lib.cuda_attach(self._client, addressof(params),
                                       addressof(how), addressof(made)))
        self.cuda = made.value
        self.table = lib.cuda_host_table(self.cuda)
        _cuda_mappings.add(self)

    def wait(self, timeout: float | None) -> None:
        """Until it is registered; in slices, so that Ctrl-C is heard."""
        left = None if timeout is None else int(timeout * 1000)
        while True:
            part = WAIT_SLICE_MS if left is None else min(left, WAIT_SLICE_MS)
            status = _library.cuda().cuda_wait(self.cuda, part)
            if not status:
                return
            error = _library.last_error(status)
            if left is not None:
                left -= part
            if not isinstance(error, errors.TimedOut) or left == 0:
                raise error

    def memory(self, pointer: int, shape: tuple[int, ...],
               strides_bytes: tuple[int, ...], typestr: str) -> Memory:
        """A view; what is mapped stays so while it lives."""
        result = Memory(self, pointer, shape, strides_bytes, typestr)
        looked_at = self._looked_at
        with self._lock:
            self._users += 1
            looked_at.views += 1
        weakref.finalize(result, self._forget, looked_at).atexit = False
        return result

    def _forget(self, looked_at: _Replaced) -> None:
        try:
            with self._lock:
                looked_at.views -= 1
                looked_at.let_go()
            self.release()
        except errors.EngramError:
            pass  # nobody is there to be told

    def prepare(self) -> int:
        generation = ctypes.c_uint64()
        _library.check(
            _library.cuda().cuda_table_prepare(self.cuda,
                                               addressof(generation))
            if self.cuda else
            _library.engram().table_prepare(self.table,
                                            addressof(generation)))
        return generation.value

    def refresh(self, generation: int, stream: int) -> None:
        with self._lock:
            if not self.cuda:
                self._swap(generation)
                return
            if self._looked_at.views:
                raise errors.Busy(
                    "there are views of what is in use, which goes when the "
                    "device is done with it", fix="delete them before")
            _library.check(_library.cuda().cuda_table_refresh(
                self.cuda, generation, stream))

    def park(self, stream: int) -> None:
        with self._lock:
            if self._looked_at.views:
                raise errors.Busy(
                    "there are views of memory that is to be overwritten",
                    fix="delete them before, or detach")
            _library.check(
                _library.cuda().cuda_table_park(self.cuda, stream)
                if self.cuda else
                _library.engram().table_park(self.table))

    def _swap(self, generation: int) -> None:
        """What is in use stays mapped for its views."""
        old = ctypes.c_void_p()
        _library.check(_library.engram().table_swap(self.table, generation,
                                                    addressof(old)))
        if old.value is not None:
            replaced, self._looked_at = self._looked_at, _Replaced()
            replaced.table = old.value
            replaced.let_go()

    def release(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users:
                return
        self.close()

    def close(self) -> None:
        lib = _library.engram()
        statuses = []
        if self.cuda:
            statuses.append(_library.cuda().cuda_detach(self.cuda))
        elif self.table:
            statuses.append(lib.detach(self.table))
        error = _library.last_error(statuses[0]) if any(statuses) else None
        self.cuda = self.table = None
        client, self._client = self._client, None
        if client:
            status = lib.close(client)
            error = error or (_library.last_error(status) if status else None)
        if error:
            raise error


@atexit.register
def _stop_registering() -> None:
    """A thread that registers memory must not meet a CUDA that is unloaded."""
    for mapping in list(_cuda_mappings):
        progress = _abi.CudaProgress()
        if not mapping.cuda or _library.cuda().cuda_progress(
                mapping.cuda, addressof(progress)):
            continue
        if not progress.ready and not progress.status:
            try:
                mapping.close()
            except errors.EngramError:
                pass
