# SPDX-License-Identifier: Apache-2.0
"""A plugin for vLLM: its Engram layers read the tables that engramd holds,
instead of allocating, pinning and loading their own.

    ENGRAMD_SOCKET=/run/engramd/default.sock vllm serve ...

or, in vLLM's own configuration,

    vllm serve ... --additional-config '{"engramd": "/run/engramd/default.sock"}'

where an object instead of the path may name more: "socket", "table" (else the
one whose layers are the model's), "path" ("uva", or "auto", "host", "hybrid":
rows gathered by engramd's threads), "wait_seconds" (for engramd and its table,
3600), and false leaves vLLM as it is.

What it touches of vLLM, and nothing else:

- Engram._create_embedding makes a subclass of ParallelEngramEmbedding whose
  parameters have no rows and whose `lookup` is ours;
- can_share_engram_tables says that replicas share, since they do;
- is_unused_checkpoint_weight of the model, so that loaders leave out files that
  hold nothing but tables.

Staging, prefetching, collectives, graphs and the sequence-parallel exchange stay
vLLM's.  The heads of a rank are those that vLLM gives to its tensor-parallel
rank; replicas (data-parallel, prefill, decode, other engines) attach the same
table.
"""
from __future__ import annotations

import dataclasses
import functools
import importlib.abc
import importlib.util
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from . import errors
from .client import Client
from .types import TableStatus

CHECKED = ("0.33", "0.34")
CONFIG_KEY = "engramd"

ENGRAM = "vllm.models.deepseek_v41.common.engram"
MODELS = {"vllm.models.deepseek_v41.nvidia.model": "DeepseekV41LLMForCausalLM",
          "vllm.models.deepseek_v41.nvidia.vl_model": "DeepseekV41ForCausalLM"}
# In the checkpoint, and as vLLM's mapper renames them.
TABLE_WEIGHT = re.compile(
    r"(?:^|\.)engram\.embed(?:_tokens)?\.(?:weight|weight_scale_inv|scale)$")
BLOCK = 32
LOG_SECONDS = 30.0
PREPARE_SECONDS = 600.0

logger = logging.getLogger("vllm.engram_client")


@dataclasses.dataclass(frozen=True)
class Settings:
    socket: str | None
    table: str | None = None
    path: str = "uva"
    wait_seconds: float = 3600.0


def settings() -> Settings | None:
    """From vLLM's configuration, else from the environment; None: not ours."""
    given = _configured()
    if given is False:
        return None
    if isinstance(given, str):
        given = {"socket": given}
    if given is None or given is True:
        socket = os.environ.get("ENGRAMD_SOCKET")
        return Settings(socket) if socket or given else None
    names = {field.name for field in dataclasses.fields(Settings)}
    unknown = sorted(set(given) - names)
    if unknown:
        raise errors.ConfigInvalid(
            f"additional_config.{CONFIG_KEY}.{unknown[0]}: unknown key",
            path=f"additional_config.{CONFIG_KEY}.{unknown[0]}",
            fix="allowed here: " + ", ".join(sorted(names)))
    return Settings(**{"socket": None, **given})


def _configured() -> Any:
    config = sys.modules.get("vllm.config")
    current = getattr(config, "get_current_vllm_config_or_none", None)
    vllm_config = current() if current else None
    more = getattr(vllm_config, "additional_config", None)
    return more.get(CONFIG_KEY) if isinstance(more, dict) else None


def register() -> None:
    """What vLLM calls in each of its processes, through the entry point; cheap
    where no Engram model is built.  Again does nothing."""
    _when_imported(ENGRAM, _patch_engram)
    for module, model in MODELS.items():
        _when_imported(module, functools.partial(_patch_model, name=model))


def check_version() -> None:
    import vllm  # type: ignore[import-not-found]

    version = str(vllm.__version__)
    if ".".join(version.split(".")[:2]) not in CHECKED:
        raise errors.VersionMismatch(
            f"the engramd plugin was checked against vLLM "
            f"{', '.join(CHECKED)}, this is {version}",
            fix="install one of those and the engram-client that knows it, or "
                "unset ENGRAMD_SOCKET to let vLLM load its own tables")


# ---- patching ----

class _Finder(importlib.abc.MetaPathFinder):
    """Calls `then` with a module once it has been imported."""

    def __init__(self, name: str, then: Callable[[Any], None]) -> None:
        self.name = name
        self.then = then
        self._searching = False

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != self.name or self._searching:
            return None
        self._searching = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._searching = False
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def and_then(module: Any) -> None:
            execute(module)
            self.then(module)

        spec.loader.exec_module = and_then  # type: ignore[method-assign]
        return spec


def _when_imported(name: str, then: Callable[[Any], None]) -> None:
    if name in sys.modules:
        then(sys.modules[name])
    elif not any(isinstance(finder, _Finder) and finder.name == name
                 for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder(name, then))


def _patch_engram(module: Any) -> None:
    original = module.Engram._create_embedding
    if hasattr(original, "engramd"):
        return
    subclass = functools.cache(lambda: _make_embedding(module))

    @functools.wraps(original)
    def create(self: Any, layout: Any, layer_hash_index: int) -> Any:
        ours = settings()
        if ours is None:
            return original(self, layout, layer_hash_index)
        check_version()
        config = module.get_current_vllm_config().engram_config
        if config is not None and not config.cpu_offload:
            raise errors.ConfigInvalid(
                "engram_config.cpu_offload is false, and engramd's tables are "
                "in host memory", path="engram_config.cpu_offload",
                fix="leave it out, or unset ENGRAMD_SOCKET")
        return subclass()(layout, layer_hash_index, ours)

    create.engramd = True  # type: ignore[attr-defined]
    module.Engram._create_embedding = create
    share = module.can_share_engram_tables

    @functools.wraps(share)
    def can_share(*args: Any, **more: Any) -> bool:
        return settings() is not None or bool(share(*args, **more))

    module.can_share_engram_tables = can_share
    for name in MODELS:
        if hasattr(sys.modules.get(name), "can_share_engram_tables"):
            setattr(sys.modules[name], "can_share_engram_tables", can_share)


def _patch_model(module: Any, name: str) -> None:
    model = getattr(module, name, None)
    if model is None or hasattr(model, "engramd"):
        return
    original = getattr(model, "is_unused_checkpoint_weight", None)

    def is_unused(self: Any, weight: str) -> bool:
        if TABLE_WEIGHT.search(weight) and settings() is not None:
            return True
        return bool(original and original(self, weight))

    model.is_unused_checkpoint_weight = is_unused
    model.engramd = True


# ---- the table ----

def choose(tables: Sequence[TableStatus], name: str | None,
           layers: Sequence[int], rows: Sequence[int], dim: int) -> str | None:
    """The table to attach; None: not ready yet, look again.

    Without a name, the only one whose layers have the model's ids, rows and
    width, among those that are ready.
    """
    if name is not None:
        known = {table["name"]: table["state"] for table in tables}
        if name not in known:
            raise errors.NotFound(
                f"engramd has no table {name}", path="table",
                fix=f"it has: {', '.join(sorted(known)) or 'none'}")
        return name if known[name] == "ready" else None
    wanted = {(layer, count, dim) for layer, count in zip(layers, rows)}
    ready = [table for table in tables if table["state"] == "ready"]
    fitting = [table["name"] for table in ready if wanted <= {
        (layer["layer_id"], layer["rows"], layer["dim"])
        for layer in table["layers"]}]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise errors.InvalidArgument(
            f"several tables of engramd fit the model: {', '.join(fitting)}",
            path="table", fix="name one: additional_config "
            f'{{"{CONFIG_KEY}": {{"table": "{fitting[0]}"}}}}')
    if len(ready) < len(tables):
        return None
    raise errors.NotFound(
        f"no table of engramd has the model's layers {list(layers)} with "
        f"{list(rows)} rows of {dim}", path="table",
        fix="configure the model's checkpoint as a table of engramd; it has: "
            + (", ".join(table["name"] for table in tables) or "none"))


@functools.cache
def _client(socket: str | None, wait_seconds: float) -> Client:
    """The process's."""
    return Client(socket, name="vllm", connect_wait=wait_seconds)


def _await_table(client: Client, ours: Settings, layout: Any) -> str:
    """Its name, once it is ready."""
    end = time.monotonic() + ours.wait_seconds
    said = -LOG_SECONDS
    while True:
        tables = client.tables()
        name = choose(tables, ours.table, layout.layer_ids,
                      layout.num_embeddings, layout.head_dim)
        if name is not None:
            return name
        now = time.monotonic()
        states = ", ".join(f"{table['name']} is {table['state']}"
                           for table in tables)
        if now >= end:
            raise errors.NotReady(
                f"no table was ready within {ours.wait_seconds:g} s: {states}",
                fix="engramctl status; engramctl load TABLE")
        if now - said >= LOG_SECONDS:
            logger.info("waiting for engramd at %s: %s", client.socket, states)
            said = now
        time.sleep(0.2)


def _attach(ours: Settings, layout: Any, layer_hash_index: int, shards: int,
            shard: int) -> Any:
    """This rank's heads of one layer; registering goes on in the
    background."""
    import torch

    layer_id = layout.layer_ids[layer_hash_index]
    client = _client(ours.socket, ours.wait_seconds)
    name = _await_table(client, ours, layout)
    table = client.attach(
        name, layers=[layer_id], tp_rank=shard, tp_size=shards,
        device="cuda" if torch.cuda.is_available() else None,
        placement="host" if ours.path == "host" else "registered", wait=False)
    _check_geometry(table, layout, layer_hash_index)
    logger.info(
        "Engram layer %d reads table %s, generation %d, of engramd at %s: "
        "rank %d of %d, %.2f GiB, content %s", layer_id, name,
        table.generation, client.socket, shard, shards, table.mapped_bytes / 2**30,
        table.content_id)
    return table


def _check_geometry(table: Any, layout: Any, layer_hash_index: int) -> None:
    """The table's rows must be where the model's hash looks for them."""
    layer = table.layer()
    sizes = [size for order in layout.primes[layer_hash_index]
             for size in order]
    if table.head_rows() != sizes or layer.dim != layout.head_dim or \
            (layer.dtype, layer.scale, layer.block_size) != (
                "fp8_e4m3", "ue8m0", BLOCK):
        raise errors.GeometryMismatch(
            f"layer {layer.layer_id} of table {table.name} is not the model's:"
            f" {layer.rows} rows of {layer.dim} {layer.dtype} with {layer.scale}"
            f" scales, primes from {table.head_rows()[:3]}; the model wants "
            f"{layout.head_dim} wide, primes from {sizes[:3]}",
            fix="load the table from this model's checkpoint")


# ---- the layer ----

# Of this process; what moves together to another generation.
_embeddings: list[Any] = []


class _NothingToLoad:
    """Tells vLLM's loader that parameters without rows miss nothing when the
    checkpoint's tables are left out."""

    def process_weights_after_loading(self, layer: Any) -> None:
        pass


def _discard(param: Any, loaded_weight: Any, *args: Any, **more: Any) -> None:
    """A weight loader: the rows are engramd's."""


def _make_embedding(module: Any) -> Any:
    """The class, made when vLLM's is there."""
    import torch

    class SidecarEngramEmbedding(
            module.ParallelEngramEmbedding):  # type: ignore[misc]
        """vLLM's embedding, without rows of its own."""

        def __init__(self, layout: Any, layer_hash_index: int,
                     ours: Settings) -> None:
            self._shard = (1, 0)
            super().__init__(
                layout.num_embeddings[layer_hash_index], layout.head_dim,
                tuple(size for order in layout.primes[layer_hash_index]
                      for size in order), cpu_offload=True)
            self.quant_method = _NothingToLoad()
            self._path = ours.path
            self._gather: Any = None
            self._ready = False
            if self.weight.is_meta:
                return  # a model that is only looked at
            self._table = _attach(ours, layout, layer_hash_index, *self._shard)
            _embeddings.append(self)

        def _get_shard_info(self) -> tuple[int, int]:
            # Replicas share the memory, not the heads.
            self.dp_size = 1
            self._shard = (self.tp_size,
                           module.get_tensor_model_parallel_rank())
            return self._shard

        def _allocate_weights(self) -> tuple[Any, Any]:
            self._weight_loader = _discard
            self.part_num_embeddings = 0  # that this module stores
            return (torch.empty(0, self.dim, dtype=torch.float8_e4m3fn),
                    torch.empty(0, self.dim // self.block_size,
                                dtype=torch.uint8))

        def _storage(self) -> Any:
            raise errors.Unsupported(
                "the rows of an Engram layer are engramd's: use lookup")

        def _get_ready(self) -> None:
            """Once, before the first lookup: outside graphs in vLLM, which
            warms up before it captures."""
            self._table.wait()
            if self._path != "uva":
                self._gather = self._table.gather()
            self._ready = True

        def lookup(self, indices: Any, out: Any,
                   background: bool = False) -> None:
            """As vLLM's: local heads of [T, heads] into bf16
            [T, local heads, dim], on the current stream."""
            if not indices.shape[0]:
                return
            if out.dtype != torch.bfloat16:
                raise errors.Unsupported(
                    "packed rows are for tables that are sharded over "
                    "data-parallel ranks; engramd's are not")
            if not self._ready:
                self._get_ready()
            if self._gather is None:
                self._table.lookup(indices, out=out, background=background)
            else:
                self._gather.lookup(indices, path=self._path, out=out)

        @property
        def engramd(self) -> Any:
            """The attached table."""
            return self._table

    return SidecarEngramEmbedding


# ---- for whoever operates the engine ----

class Worker:
    """`--worker-extension-cls engram_client.vllm.Worker` gives vLLM's workers
    these methods, for collective_rpc."""

    def engram_tables(self) -> list[dict[str, Any]]:
        """What this worker reads, a layer each."""
        return [{"table": embedding.engramd.name,
                 "layer_id": embedding.engramd.layers[0],
                 "generation": embedding.engramd.generation,
                 "current": embedding.engramd.poll(),
                 "content_id": embedding.engramd.content_id,
                 "tp_rank": embedding.engramd.tp_rank,
                 "tp_size": embedding.engramd.tp_size}
                for embedding in _embeddings]

    def engram_prepare(self) -> list[int]:
        """Map what is current beside what is in use, while the engine runs:
        the generation of each layer, 0 for one that has it already."""
        return [embedding.engramd.prepare(PREPARE_SECONDS)
                for embedding in _embeddings]

    def engram_park(self) -> None:
        """Before a reload in place, while the engine is paused: nothing reads
        until engram_refresh, and the table's memory may be written anew."""
        for embedding in _embeddings:
            embedding.engramd.park()

    def engram_refresh(self, generation: int) -> list[dict[str, Any]]:
        """Change over, between two steps; then as engram_tables."""
        for embedding in _embeddings:
            if embedding.engramd.generation != generation:
                embedding.engramd.refresh(generation)
        return self.engram_tables()


def _agreed(prepared: Sequence[Sequence[int]]) -> int | None:
    """The generation that all layers of all workers go to; None: nowhere."""
    wanted = {generation for layers in prepared for generation in layers
              if generation}
    if not wanted:
        return None
    if len(wanted) > 1:
        raise errors.Busy(
            "the table was replaced again while workers prepared: "
            f"generations {sorted(wanted)}", fix="change over once more")
    return wanted.pop()


def change_over(llm: Any) -> list[dict[str, Any]] | None:
    """Move an LLM, between two calls of generate, to the generation that
    engramd has published.  What was cached of prompts came from the old rows
    and is dropped.  None: there was nothing new.

    Needs --worker-extension-cls engram_client.vllm.Worker.
    """
    generation = _agreed(llm.collective_rpc("engram_prepare"))
    if generation is None:
        return None
    moved = llm.collective_rpc("engram_refresh", args=(generation,))
    llm.reset_prefix_cache()
    return [layer for worker in moved for layer in worker]


async def change_over_async(engine: Any, mode: str = "wait"
                            ) -> list[dict[str, Any]] | None:
    """The same for an AsyncLLM.  Workers prepare while it serves; then it is
    paused (`mode` as AsyncLLM.pause_generation has it: "wait" for what runs,
    "abort" it, or "keep" it), its caches are dropped, and it goes on."""
    generation = _agreed(await engine.collective_rpc("engram_prepare"))
    if generation is None:
        return None
    await engine.pause_generation(mode=mode, clear_cache=True)
    try:
        moved = await engine.collective_rpc("engram_refresh",
                                            args=(generation,))
    finally:
        await engine.resume_generation()
    return [layer for worker in moved for layer in worker]
