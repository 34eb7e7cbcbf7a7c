# SPDX-License-Identifier: Apache-2.0
"""An attached table: hash, look up, gate, look at."""
from __future__ import annotations

import ctypes
import itertools
import time
import weakref
from collections.abc import Callable, Sequence
from ctypes import addressof
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _abi, _arrays, _library, errors, kernels
from ._arrays import CPU
from ._mapping import Mapping, cuda_ordinal

if TYPE_CHECKING:
    from .client import Client
    from .gather import Gather


@dataclass(frozen=True)
class Layer:
    """One layer of an attached table.

    rows       of all ranks
    row_begin, row_end
               the rows of this rank, [row_begin, row_end)
    head_begin, head_end
               its real heads, [head_begin, head_end)
    local_heads
               the same for all ranks, padding included
    dtype      "fp8_e4m3" or "bf16"
    scale      "none", "tensor" (one, see tensor_scale) or "ue8m0" (one for
               block_size codes of a row)
    layout     "packed": the scales of a row stand behind its codes; "split":
               in an array of their own
    """

    layer_id: int
    rows: int
    row_begin: int
    row_end: int
    head_begin: int
    head_end: int
    local_heads: int
    dim: int
    dtype: str
    scale: str
    block_size: int
    tensor_scale: float
    layout: str


class Counters(NamedTuple):
    """Since attach."""

    misses: int  # ids of this rank's heads that no row answers, -1 among them
    rejects: int  # token ids and slots out of range, on a GPU


class Progress(NamedTuple):
    """Of registering a table with a CUDA device."""

    ready: bool
    done_bytes: int
    total_bytes: int
    seconds: float


class Table:
    """What Client.attach returns; a context manager that detaches.

    Arrays are NumPy's, torch tensors on the CPU or on the table's CUDA device,
    or other objects with __cuda_array_interface__; all of one call are on one
    device.  Calls on a CUDA device go to `stream` (a torch.cuda.Stream or the
    address of a CUstream; None: the current one), return at once, and can be
    captured by torch.cuda.graph and compiled by torch.compile (with the current
    stream; another leaves the graph).  bf16 is uint16
    (its bits) in NumPy.

    Layers are named by their ids (1 and 14 in DeepSeek-V4.1-Flash), never by
    their place.  `layer` may be left out when one is attached.

    Any number of threads may read at once; detach must be the last call.  A
    forked child can not use it.  Errors are those of engram_client.errors,
    GPU kernels' own appear at the stream.
    """

    def __init__(self, client: Client, name: str, *,
                 layers: Sequence[int] | None, tp_rank: int, tp_size: int,
                 device: Any, placement: str, chunk_bytes: int,
                 node: int | None, wait: bool) -> None:
        self.device = cuda_ordinal(device)
        self._mapping: Mapping | None = None
        self._client = client
        self._misses = 0
        mapping = Mapping(client.socket, client.name, client.timeout)
        try:
            mapping.attach(name, layers, tp_rank, tp_size, self.device,
                           placement, chunk_bytes, node)
            self._read_info(mapping)
            if wait and mapping.cuda:
                mapping.wait(None)
        except BaseException:
            mapping.release()
            raise
        self._mapping = mapping
        self._number = next(_numbers)
        _tables[self._number] = self
        client._tables.add(self)
        if _arrays.torch() is not None:
            _torch_ops()

    def _read_info(self, mapping: Mapping) -> None:
        lib = _library.engram()
        info = _abi.TableInfo()
        _library.check(lib.table_info(mapping.table, addressof(info)))
        self.name: str = info.name.decode()
        self.generation: int = info.generation
        self.boot_epoch: int = info.boot_epoch
        self.content_id: str = info.content_id.decode()
        self.tp_rank: int = info.tp_rank
        self.tp_size: int = info.tp_size
        self.num_cols: int = info.num_cols
        self.local_heads: int = info.local_heads
        self.dim: int = info.dim
        self.max_ngram: int = info.max_ngram
        self.num_heads: int = info.num_heads
        self.pad_id: int = info.pad_id
        self.token_map_len: int = info.token_map_len
        self.mapped_bytes: int = info.mapped_bytes
        # that the copy is for; None: there is one copy
        self.node: int | None = None if info.node < 0 else info.node
        self.record_bytes: int = lib.record_bytes(mapping.table)
        self._infos = []
        for index in range(info.num_layers):
            layer = _abi.LayerInfo()
            _library.check(lib.layer_info(mapping.table, index,
                                          addressof(layer)))
            self._infos.append(layer)
        self.layers = tuple(info.layer_id for info in self._infos)
        self._index_of = {id: index for index, id in enumerate(self.layers)}

    # ---- life ----

    def __enter__(self) -> Table:
        return self

    def __exit__(self, kind: type[BaseException] | None,
                 error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.detach()

    def __del__(self) -> None:
        try:
            self.detach()
        except Exception:  # pylint: disable=broad-except
            pass  # the interpreter may be half gone

    def __repr__(self) -> str:
        where = "cpu" if self.device == CPU else f"cuda:{self.device}"
        state = "" if self._mapping else ", detached"
        return (f"<engram_client.Table {self.name} generation "
                f"{self.generation}, layers {list(self.layers)}, {where}"
                f"{state}>")

    def detach(self) -> None:
        """Unmap, and let go of the lease; again does nothing.  A view keeps
        the memory mapped, and leased, until it is gone.  On a CUDA device the
        work that reads the table must be over, and no graph of it replayed
        after."""
        mapping, self._mapping = self._mapping, None
        if mapping is not None:
            self._client._tables.discard(self)
            mapping.release()

    def _mapped(self) -> Mapping:
        if self._mapping is None:
            raise errors.InvalidArgument(f"table {self.name} is detached")
        return self._mapping

    def wait(self, timeout: float | None = None) -> None:
        """Until lookups on the CUDA device are possible; TimedOut after
        `timeout` seconds, or what registering failed with."""
        mapping = self._mapped()
        if mapping.cuda:
            mapping.wait(timeout)

    def progress(self) -> Progress:
        """How far registering is; ready at once on the CPU."""
        mapping = self._mapped()
        if not mapping.cuda:
            return Progress(True, self.mapped_bytes, self.mapped_bytes, 0.0)
        found = _abi.CudaProgress()
        _library.check(_library.cuda().cuda_progress(mapping.cuda,
                                                     addressof(found)))
        return Progress(bool(found.ready), found.done_bytes,
                        found.total_bytes, found.seconds)

    def poll(self) -> int:
        """The generation that is current now, without a system call; 0 if the
        table was withdrawn, or its engramd is gone."""
        return _library.engram().table_poll(self._mapped().table)

    def prepare(self, timeout: float = 0.0) -> int:
        """After a reload, or a restart of engramd: lease and map what is
        current now beside what is in use.  Returns the generation that
        refresh would change over to; 0: the table has it already.

        Any thread, also while others look rows up.  On the CPU it takes as
        long as a call to engramd.  On a CUDA device it is begun in the
        background, takes as long as registering and twice the registered
        memory, and until it is done, or `timeout` seconds have passed,
        NotReady: ask again at a later step.  Draining while the table is
        withdrawn: detach, and attach when it is ready.  GeometryMismatch when
        sizes differ: likewise.  Disconnected: later.
        """
        end = time.monotonic() + timeout
        while True:
            try:
                return self._mapped().prepare()
            except errors.NotReady:
                if time.monotonic() >= end:
                    raise
            time.sleep(0.005)

    def refresh(self, generation: int = 0, *, stream: Any = None) -> bool:
        """At a step boundary: change over to what is prepared, or with 0 to
        whatever is current.  False: there was nothing new.

            if table.poll() != table.generation:      # each step, at no cost
                table.refresh()

        Tensor-parallel ranks first agree on a generation that all have
        prepared.  No other thread may use the table meanwhile.

        On a CUDA device with 0: whatever is prepared, which is begun here if
        need be; so call it again at a later step.  What is in `stream` reads
        the rows of before, what follows the new ones, captured graphs too;
        other streams are for the caller to order.  Not while the stream is
        captured, and not while there are views (Busy).

        On the CPU views look on at what they were made of, which stays mapped
        and leased while they live.  GenerationGone when `generation` is not
        what is prepared; what prepare says.  After an error the table is as it
        was.
        """
        mapping = self._mapped()
        before = self._identity(mapping)
        if mapping.cuda:
            if not generation and not self._begun():
                return False
            self._launch(stream, lambda pointer: mapping.refresh(generation,
                                                                 pointer))
        else:
            mapping.refresh(generation, 0)
        if self._identity(mapping) == before:
            return False
        self._read_info(mapping)
        return True

    def park(self, *, stream: Any = None) -> None:
        """For a table whose reload.mode is "in_place": say that nothing reads
        it any more, so that the next generation can be written into the memory
        that is mapped, and registered.

            if table.poll() == 0:                 # each step, at its boundary
                table.park()                      # Unsupported: detach instead
            ...                                   # no step until refresh()

        Until refresh has changed over, lookups are NotReady, and prepare is
        Draining or NotReady.  On a CUDA device what is in `stream` is waited
        for; other streams are the caller's.  Busy while there are views.
        Unsupported when the table is unloaded or reloaded in another mode.
        Succeeds when engramd is gone.
        """
        mapping = self._mapped()
        if mapping.cuda:
            self._launch(stream, mapping.park)
        else:
            mapping.park(0)

    def _begun(self) -> bool:
        """Is something new prepared?  If it is not, begin."""
        try:
            return bool(self.prepare())
        except errors.NotReady:
            return False

    @staticmethod
    def _identity(mapping: Mapping) -> tuple[int, int]:
        info = _abi.TableInfo()
        _library.check(_library.engram().table_info(mapping.table,
                                                    addressof(info)))
        return info.boot_epoch, info.generation

    # ---- what it is ----

    def layer(self, layer: int | None = None) -> Layer:
        info = self._infos[self._index(layer)]
        rows, shard = info.rows, info.shard
        packed = rows.scale_scheme == _abi.SCALE_UE8M0 and \
            rows.code_stride_bytes == rows.scale_stride_bytes
        return Layer(
            info.layer_id, info.total_rows, shard.row_begin, shard.row_end,
            shard.head_begin, shard.head_end, shard.local_heads, rows.dim,
            {_abi.FP8_E4M3: "fp8_e4m3", _abi.BF16: "bf16"}[rows.dtype],
            {_abi.SCALE_NONE: "none", _abi.SCALE_TENSOR: "tensor",
             _abi.SCALE_UE8M0: "ue8m0"}[rows.scale_scheme],
            rows.block_size, rows.tensor_scale,
            "packed" if packed else "split")

    def _index(self, layer: int | None) -> int:
        if layer is None and len(self.layers) == 1:
            return 0
        if layer not in self._index_of:
            raise errors.NotFound(
                f"layer {layer} of table {self.name} is not attached"
                if layer is not None else "layer: wanted, since table "
                f"{self.name} has several", path="layer",
                fix=f"layer ids: {', '.join(map(str, self.layers))}")
        return self._index_of[layer]

    def head_rows(self, layer: int | None = None) -> list[int]:
        """Rows of each hash column of all ranks: the primes of the hash."""
        params = _abi.HashParams()
        _library.check(_library.engram().hash_params(self._mapped().table,
                                                     addressof(params)))
        columns = ctypes.POINTER(ctypes.POINTER(ctypes.c_int64)).from_buffer(
            ctypes.c_void_p(params.primes))
        return columns[self._index(layer)][:self.num_cols]

    def counters(self, stream: Any = None) -> Counters:
        """On a CUDA device it waits for what is in the stream, and must not
        be called while that is captured."""
        mapping = self._mapped()
        found = _abi.CudaCounters()
        if mapping.cuda:
            pointer = _arrays.stream_pointer(stream, self.device)
            _library.check(_library.cuda().cuda_counters(
                mapping.cuda, pointer, addressof(found)))
        return Counters(found.misses + self._misses, found.rejects)

    # ---- hash ----

    def hash(self, input_ids: Any, positions: Any = None,
             query_start_loc: Any = None, *, dead_mask: Any = None,
             lookback_ids: Any = None, lookback_dead: Any = None,
             slot_cache: Any = None, slot_mapping: Any = None,
             block_table: Any = None, block_size: int = 0, out: Any = None,
             stream: Any = None) -> Any:
        """Row numbers of the n-grams that end at each token: int32
        [T, attached layers, num_cols].

        input_ids        int32 [T], raw token ids of all requests
        positions        int64 [T], in their request; None: 0, 1, ...
        query_start_loc  int32 [R + 1], where each request begins; None: one
                         request
        dead_mask        bool [T], tokens that take part in no n-gram
        lookback_ids     int32 [R, depth], the tokens before each request's
                         first one, newest first, -1 = not known
        lookback_dead    bool [R, depth]
        slot_cache       int32 [slots], compressed ids by KV slot, written
                         where slot_mapping says and read where lookback_ids
                         does not tell
        slot_mapping     int64 [T], < 0: write nothing
        block_table      int32 [R, blocks]
        block_size       slots of a block

        On the CPU other integers, and lists, are converted, and a token id
        out of range is InvalidArgument; on a GPU it counts as the pad id, in
        counters().  NoTokenMap.  Meaning: engram_kernels.h.
        """
        if _arrays.compiling() and stream is None:
            return _torch_ops().hash(
                self, input_ids, positions, query_start_loc, dead_mask,
                lookback_ids, lookback_dead, slot_cache, slot_mapping,
                block_table, block_size, out)
        entered = _arrays.torch_stream(stream, input_ids)
        if entered is not None:
            with entered:
                return self.hash(
                    input_ids, positions, query_start_loc,
                    dead_mask=dead_mask, lookback_ids=lookback_ids,
                    lookback_dead=lookback_dead, slot_cache=slot_cache,
                    slot_mapping=slot_mapping, block_table=block_table,
                    block_size=block_size, out=out)
        input_ids = _arrays.int32(input_ids, "input_ids")
        tokens = input_ids.shape[0] if input_ids.shape else 0
        # what is converted has to live until the call is over
        positions = _positions(positions, input_ids, tokens)
        query_start_loc = _one_request(query_start_loc, input_ids, tokens)
        if lookback_ids is not None:
            lookback_ids = _arrays.int32(lookback_ids, "lookback_ids")
        if slot_mapping is not None:
            slot_mapping = _arrays.int64(slot_mapping, "slot_mapping")
        if block_table is not None:
            block_table = _arrays.int32(block_table, "block_table")
        view = _arrays.view
        views = {"input_ids": view(input_ids, "input_ids", "int32", 1),
                 "positions": view(positions, "positions", "int64", 1),
                 "query_start_loc": view(query_start_loc, "query_start_loc",
                                         "int32", 1)}
        for name, array, kind, dims in (
                ("dead_mask", dead_mask, "bool", 1),
                ("lookback_ids", lookback_ids, "int32", 2),
                ("lookback_dead", lookback_dead, "bool", 2),
                ("slot_cache", slot_cache, "int32", 1),
                ("slot_mapping", slot_mapping, "int64", 1),
                ("block_table", block_table, "int32", 2)):
            if array is not None:
                views[name] = view(array, name, kind, dims)
        shape = (tokens, len(self.layers), self.num_cols)
        if out is None:
            out = _arrays.empty_like(input_ids, shape, "int32")
        views["out"] = _arrays.output(out, "out", "int32", shape)
        self._run_hash(views, block_size, stream)
        return out

    def _run_hash(self, views: dict[str, _arrays.View], block_size: int,
                  stream: Any) -> None:
        batch = kernels.hash_batch(views, block_size)
        mapping = self._mapped()
        out = views["out"].pointer
        if self._device_of(views) == CPU:
            _library.check(_library.engram().hash(
                mapping.table, batch, out))
            return
        self._launch(stream, lambda pointer: _library.cuda().cuda_table_hash(
            mapping.cuda, batch, out, pointer))

    def _device_of(self, views: dict[str, _arrays.View]) -> int:
        """That of all views; the table's, or the CPU."""
        device = next(iter(views.values())).device
        if device == CPU or device == self.device:
            for view in views.values():
                if view.device != device:
                    break
            else:
                return device
        places = ", ".join(
            f"{name} on " + ("the CPU" if view.device == CPU else
                             f"cuda:{view.device}")
            for name, view in views.items())
        raise errors.InvalidArgument(
            f"arrays of one call must be on one device, the CPU or the "
            f"table's: {places}; table {self.name} on " +
            ("the CPU" if self.device == CPU else f"cuda:{self.device}"),
            path=next(iter(views)),
            fix="attach the table with the device= of the arrays")

    def _launch(self, stream: Any, call: Callable[[int], int | None]) -> None:
        """With the table's device current."""
        pointer, guard = _arrays.launching(stream, self.device)
        if guard is None:
            _library.check(call(pointer) or 0)
            return
        with guard:
            _library.check(call(pointer) or 0)

    # ---- lookup ----

    def lookup(self, hash_ids: Any, layer: int | None = None, *,
               out: Any = None, stream: Any = None,
               background: bool = True) -> Any:
        """Rows of this rank's heads: bf16 [T, local_heads, dim].

        hash_ids    int32 [T, num_cols], or [T, attached layers, num_cols] as
                    hash gives them; any strides.  -1, ids of other ranks and
                    padded heads give zeros
        layer       the layer's id
        out         where to, contiguous; None: a new array
        background  on a GPU: take as few multiprocessors as reach full speed;
                    False: nothing runs beside, so small batches may take more
        """
        if _arrays.compiling() and stream is None:
            return _torch_ops().lookup(self, hash_ids, layer, out, background)
        entered = _arrays.torch_stream(stream, hash_ids)
        if entered is not None:
            with entered:
                return self.lookup(hash_ids, layer, out=out,
                                   background=background)
        index = self._index(layer)
        hash_ids = _arrays.int32(hash_ids, "hash_ids")
        ids = self._layer_ids(hash_ids, index)
        shape = (ids.shape[0], self.local_heads, self.dim)
        if out is None:
            out = _arrays.empty_like(hash_ids, shape, "bf16")
        self._run_lookup(ids, index, _arrays.output(out, "out", "bf16", shape),
                         stream, background)
        return out

    def _layer_ids(self, hash_ids: Any, index: int) -> _arrays.View:
        """[T, num_cols] of what hash gave, or of one layer."""
        dims = 3 if len(hash_ids.shape) == 3 else 2
        ids = _arrays.view(hash_ids, "hash_ids", "int32", dims)
        if ids.shape[-1] != self.num_cols or \
                dims == 3 and ids.shape[1] != len(self.layers):
            raise errors.InvalidArgument(
                f"hash_ids: shape [T, {self.num_cols}] or [T, "
                f"{len(self.layers)}, {self.num_cols}] wanted, "
                f"{list(ids.shape)} given", path="hash_ids")
        if dims == 2:
            return ids
        return _arrays.View(ids.pointer + 4 * index * ids.strides[1],
                            (ids.shape[0], self.num_cols),
                            (ids.strides[0], ids.strides[2]), ids.device)

    def _run_lookup(self, ids: _arrays.View, index: int, out: _arrays.View,
                    stream: Any, background: bool) -> None:
        mapping = self._mapped()
        if ids.device != out.device or ids.device not in (CPU, self.device):
            self._device_of({"hash_ids": ids, "out": out})
        if ids.device == CPU:
            misses = ctypes.c_uint64()
            _library.check(_library.engram().lookup(
                mapping.table, index, ids.pointer, *ids.strides, ids.shape[0],
                out.pointer, addressof(misses)))
            self._misses += misses.value
            return
        params = lookup_params(ids, background)
        self._launch(stream, lambda pointer:
                     _library.cuda().cuda_table_lookup(
                         mapping.cuda, index, params, out.pointer, pointer))

    def gather(self, *, slots: int = 0, max_rows: int = 0,
               timeout_ms: int = 0, prefetch: int = 0, cache_bytes: int = 0,
               deduplicate: bool = False) -> Gather:
        """Lookups whose rows engramd's threads gather: faster for large
        batches; see engram_client.Gather.

        slots       batches under way at once, 1 to 8; 0: 2
        max_rows    of a batch; more are several; 0: 65536, on a GPU 196608
        timeout_ms  after which rows are read here instead; 0: 50, on a GPU 20
                    (or 1000 with placement="host", where they are lost then)
        prefetch    on a GPU: so many batches more, for Gather.post; 8 in all
        cache_bytes on a GPU: of its memory, for rows that large batches look
                    up often; worth it where ids are skewed, as those of text
        deduplicate on a GPU: rows that a large batch has more than once are
                    gathered once; with a cache they always are

        Unsupported when engramd has no gather threads; Busy, NoSpace.
        """
        from .gather import Gather

        return Gather(self, slots, max_rows, timeout_ms, prefetch,
                      cache_bytes, deduplicate)

    # ---- the rest of a layer ----

    gate = staticmethod(kernels.gate)
    sp_rows = staticmethod(kernels.sp_rows)

    # ---- the rows themselves ----

    def rows(self, rows: Any, layer: int | None = None) -> Any:
        """Stored bytes, codes then scales: a NumPy array, uint8
        [N, record_bytes].  InvalidArgument for a row of another rank."""
        index = self._index(layer)
        rows = _arrays.int64(rows, "rows")
        count, = _arrays.view(rows, "rows", "int64", 1).shape
        numpy = _arrays.numpy_module()
        numbers = numpy.ascontiguousarray(rows)
        out = numpy.empty((count, self.record_bytes), dtype="uint8")
        _library.check(_library.engram().read_rows(
            self._mapped().table, index, numbers.ctypes.data, count,
            out.ctypes.data))
        return out

    def weight_view(self, layer: int | None = None, *,
                    as_torch: bool | None = None) -> Any:
        """This rank's codes where they are, without a copy: [row_end -
        row_begin, dim]; row 0 is row_begin.

        NumPy: uint8, the fp8 codes, or uint16, the bits of bf16; read-only.
        torch, when the process uses it (or as_torch): float8_e4m3fn or
        bfloat16, on the table's device; writing to it ends the process.
        Strides are those of the layout: a packed row is codes and scales.
        """
        info = self._infos[self._index(layer)]
        bf16 = info.rows.dtype == _abi.BF16
        return self._view(
            info, info.rows.codes, info.rows.dim, 2 if bf16 else 1,
            info.rows.code_stride_bytes, as_torch,
            "bfloat16" if bf16 else "float8_e4m3fn")

    def scale_view(self, layer: int | None = None, *,
                   as_torch: bool | None = None) -> Any:
        """Likewise the scales: uint8 [rows, dim / block_size], ue8m0 bytes;
        None when rows have none of their own."""
        info = self._infos[self._index(layer)]
        rows = info.rows
        if rows.scale_scheme != _abi.SCALE_UE8M0:
            return None
        return self._view(info, rows.scales, -(-rows.dim // rows.block_size),
                          1, rows.scale_stride_bytes, as_torch, "")

    def _view(self, info: _abi.LayerInfo, pointer: int | None, width: int,
              item: int, stride: int, as_torch: bool | None,
              dtype: str) -> Any:
        mapping = self._mapped()
        count = info.rows.row_end - info.rows.row_begin
        module = _arrays.torch()
        if as_torch is None:
            as_torch = module is not None
        if not count or not pointer:
            pointer, count = addressof(info), 0
        memory = mapping.memory(pointer, (count, width), (stride, item),
                                "<u2" if item == 2 else "|u1")
        if not as_torch:
            return _arrays.numpy_module().asarray(memory)
        return _torch_ops().tensor(memory, self._view_device(), dtype)

    def _view_device(self) -> int:
        if self.device == CPU:
            return CPU
        info = _abi.CudaInfo()
        _library.check(_library.cuda().cuda_info(self._mapped().cuda,
                                                 addressof(info)))
        if info.placement != _abi.REGISTERED:
            raise errors.Unsupported(
                "there are views of registered memory only",
                fix='attach with placement="registered", or ask for NumPy '
                    "(as_torch=False)")
        return self.device


_pack_lookup_params = _abi.packer(_abi.CudaLookupParams).pack


def lookup_params(ids: _arrays.View, background: bool) -> bytes:
    """struct engram_cuda_lookup_params."""
    return _pack_lookup_params(
        ids.pointer, *ids.strides, ids.shape[0], 0,
        _abi.BACKGROUND if background else _abi.FOREGROUND)


def _positions(positions: Any, like: Any, tokens: int) -> Any:
    if positions is not None:
        return _arrays.int64(positions, "positions")
    if _arrays.is_tensor(like):
        return _arrays.torch().arange(tokens, device=like.device)
    return _arrays.numpy_module().arange(tokens, dtype="int64")


def _one_request(bounds: Any, like: Any, tokens: int) -> Any:
    if bounds is not None:
        return _arrays.int32(bounds, "query_start_loc")
    if _arrays.is_tensor(like):
        module = _arrays.torch()  # no copy from the host, for graphs
        return module.arange(2, device=like.device,
                             dtype=module.int32) * tokens
    return _arrays.numpy_module().array([0, tokens], dtype="int32")


# ---- torch.compile ----

# By number, for custom operators, whose arguments are numbers and tensors.
_numbers = itertools.count()
_tables: weakref.WeakValueDictionary[int, Table] = \
    weakref.WeakValueDictionary()


def table_of(number: int) -> Table:
    table = _tables.get(number)
    if table is None:
        raise errors.InvalidArgument("a compiled function outlived its table")
    return table


def _torch_ops() -> Any:
    from . import torch_ops

    return torch_ops
