# SPDX-License-Identifier: Apache-2.0
"""The plugin for vLLM, on a stand-in for the classes that it touches
(standin/vllm); test_vllm_installed.py does it on vLLM's own."""
import asyncio
import importlib
import pathlib
import threading

import numpy as np
import pytest

import engram_client
import engram_client.vllm as plugin
import engramd
import rows_of
from python_setting import COLS, DIM, LAYERS, SHAPE, start
from engram_client import errors
from vllm_model import forget, module, wanted

torch = pytest.importorskip("torch")
if not hasattr(torch, "float8_e4m3fn"):
    pytest.skip("this torch has no float8", allow_module_level=True)

STANDIN = pathlib.Path(__file__).with_name("standin")


@pytest.fixture
def vllm(monkeypatch, sidecar):
    """The stand-in, the plugin registered, the socket in the environment."""
    forget()
    monkeypatch.syspath_prepend(str(STANDIN))
    monkeypatch.setenv("ENGRAMD_SOCKET", str(sidecar.socket))
    plugin.register()
    plugin.register()  # vLLM may
    yield importlib.import_module("vllm")
    forget()


def build(layout, config=None, **options):
    config = config or module("config").VllmConfig()
    with module("config").set_current_vllm_config(config):
        return module("models.deepseek_v41.nvidia.model") \
            .DeepseekV41LLMForCausalLM(layout(), **options)


def rows(model, layer, hashes):
    model.prepare(hashes)
    engram = model.layers[str(layer)]["engram"]
    return engram.embed(hashes[:, engram.layer_hash_index])


def test_layers_read_the_sidecar(vllm, layout, hashes, client):
    model = build(layout)
    for layer in LAYERS:
        assert np.array_equal(rows(model, layer, hashes).double().numpy(),
                              wanted(layer, hashes))
    # nothing is stored, and one lease a layer
    assert sum(p.numel() for p in model.parameters()) == 0
    assert client.table("demo")["leases"] == len(LAYERS)
    assert {who["name"] for who in client.clients()} >= {"vllm"}


def test_same_as_vllms_own(vllm, layout, hashes, monkeypatch):
    """Its own embedding, loaded with the same rows, gives the same."""
    monkeypatch.delenv("ENGRAMD_SOCKET")
    own = build(layout)
    files = [{}]
    for layer, count in zip(LAYERS, layout().num_embeddings):
        records = [rows_of.record(layer, row, DIM) for row in range(count)]
        codes = np.frombuffer(b"".join(r[0] for r in records), dtype=np.uint8)
        scales = np.frombuffer(b"".join(r[1] for r in records),
                               dtype=np.uint8)
        files[0][f"layers.{layer}.engram.embed.weight"] = torch.from_numpy(
            codes.reshape(count, DIM).copy()).view(torch.float8_e4m3fn)
        files[0][f"layers.{layer}.engram.embed.scale"] = torch.from_numpy(
            scales.reshape(count, -1).copy())
    assert module("model_executor.loader").load(own, files) == 1
    assert not plugin._embeddings
    for layer in LAYERS:
        assert np.array_equal(rows(own, layer, hashes).double().numpy(),
                              wanted(layer, hashes))


@pytest.mark.parametrize("size,sequence", [(2, False), (3, False), (4, True)])
def test_tensor_parallel(vllm, layout, hashes, size, sequence):
    """Heads over ranks, padded where they do not divide; with and without
    sequence parallelism."""
    world = module("distributed").World(size)
    config = module("config").VllmConfig()
    model = module("models.deepseek_v41.nvidia.model")
    lock = threading.Lock()

    def rank():
        with lock, module("config").set_current_vllm_config(config):
            made = model.DeepseekV41LLMForCausalLM(
                layout(), sequence_parallel=sequence)
        return [rows(made, layer, hashes) for layer in LAYERS]

    results = world.run(rank)
    for index, layer in enumerate(LAYERS):
        found = [result[index].double().numpy() for result in results]
        if sequence:
            found = [np.concatenate(found)[:len(hashes)]]
        for one in found:
            assert np.array_equal(one, wanted(layer, hashes))
    assert sorted({embedding.engramd.tp_rank
                   for embedding in plugin._embeddings}) == list(range(size))


def test_replicas_keep_all_heads(vllm, layout, hashes):
    """vLLM would shard heads over data-parallel replicas, or share by
    /dev/shm; here each reads the same memory."""
    config = module("config").VllmConfig()
    config.engram_config.dp_shared_memory = True

    def replica():
        model = build(layout, config)
        assert config.engram_config.dp_shared_memory
        return [(rows(model, layer, hashes),
                 model.layers[str(layer)]["engram"].embed_tokens.dp_size)
                for layer in LAYERS]

    result, = module("distributed").World(1, replicas=2).run(replica)
    for layer, (found, dp_size) in zip(LAYERS, result):
        assert dp_size == 1
        assert np.array_equal(found.double().numpy(), wanted(layer, hashes))


def test_pipeline_stages(vllm, layout, hashes, client):
    """A stage attaches what is in it; one without an Engram layer nothing."""
    empty = build(layout, local_layers=())
    assert not plugin._embeddings and not list(empty.parameters())
    stage = build(layout, local_layers=(9,))
    assert client.table("demo")["leases"] == 1
    assert np.array_equal(rows(stage, 9, hashes).double().numpy(),
                          wanted(9, hashes))


def checkpoint_files(mixed):
    """One file with tables alone, and one with others (and tables)."""
    tables = {f"layers.{layer}.engram.embed.{part}": object()
              for layer in LAYERS for part in ("weight", "scale")}
    other = {"layers.0.attn.wq.weight": object()}
    return [{**tables, **other}] if mixed else [tables, other]


def test_loading_leaves_tables_out(vllm, layout, hashes):
    """Files of tables are not opened; tables in others are dropped, and
    loading again changes nothing."""
    model = build(layout)
    loader = module("model_executor.loader")
    for _ in range(2):
        assert loader.load(model, checkpoint_files(mixed=False)) == 1
        assert loader.load(model, checkpoint_files(mixed=True)) == 1
    assert np.array_equal(rows(model, 9, hashes).double().numpy(),
                          wanted(9, hashes))


def test_replaced_parameters_do_not_matter(vllm, layout, hashes):
    """As sleeping and waking, or a trainer's reload, may do."""
    model = build(layout)
    for parameter in model.parameters():
        parameter.data = torch.empty_like(parameter.data)
    assert np.array_equal(rows(model, 3, hashes).double().numpy(),
                          wanted(3, hashes))


def test_a_model_without_memory(vllm, layout, client):
    """As vLLM makes one to look at its parameters: nothing is attached."""
    with torch.device("meta"):
        model = build(layout)
    assert all(parameter.is_meta for parameter in model.parameters())
    assert client.table("demo")["leases"] == 0 and not plugin._embeddings


def test_idle_replicas(vllm, layout):
    """They look up nothing, or ids that are none."""
    model = build(layout)
    assert rows(model, 3, torch.empty(0, 2, COLS, dtype=torch.int32)).shape \
        == (0, COLS, DIM)
    none = torch.full((4, 2, COLS), -1, dtype=torch.int32)
    assert not rows(model, 3, none).any()


@pytest.mark.parametrize("value", [
    "{socket}", {"socket": "{socket}"},
    {"socket": "{socket}", "table": "demo", "path": "uva"}])
def test_configured_without_environment(vllm, layout, hashes, monkeypatch,
                                        sidecar, value):
    monkeypatch.delenv("ENGRAMD_SOCKET")
    path = str(sidecar.socket)
    given = path if isinstance(value, str) else {**value, "socket": path}
    config = module("config").VllmConfig(
        additional_config={"engramd": given})
    model = build(layout, config)
    assert len(plugin._embeddings) == 2
    assert np.array_equal(rows(model, 3, hashes).double().numpy(),
                          wanted(3, hashes))


def test_left_alone(vllm, layout, monkeypatch):
    """Without a socket, or told so, vLLM is as it was."""
    off = module("config").VllmConfig(additional_config={"engramd": False})
    engram = module("models.deepseek_v41.common.engram")
    for config in (off, None):
        model = build(layout, config)
        embedding = model.layers["3"]["engram"].embed_tokens
        assert type(embedding) is engram.ParallelEngramEmbedding
        assert embedding.weight.shape[0] == layout().num_embeddings[0]
        monkeypatch.delenv("ENGRAMD_SOCKET", raising=False)


def test_gathered_rows(vllm, layout, hashes, sidecar):
    # of so small a table, a GPU that may choose reads all by itself
    device, path = (("cuda", "host") if torch.cuda.is_available()
                    else ("cpu", "auto"))
    config = module("config").VllmConfig(additional_config={
        "engramd": {"socket": str(sidecar.socket), "path": path}})
    with torch.device(device):  # as vLLM loads models
        model = build(layout, config)
    for layer in LAYERS:
        got = rows(model, layer, hashes.to(device))
        assert np.array_equal(got.double().cpu().numpy(),
                              wanted(layer, hashes))
    gathers = [embedding._gather for embedding in plugin._embeddings]
    assert sum(gather.counters().gathered for gather in gathers) > 0
    for gather in gathers:
        gather.close()


class Engine:
    """LLM and AsyncLLM, with one worker."""

    def __init__(self):
        self.said = []
        self.worker = plugin.Worker()

    def collective_rpc(self, method, args=()):
        self.said.append(method)
        return [getattr(self.worker, method)(*args)]

    def reset_prefix_cache(self):
        self.said.append("reset")


class AsyncEngine(Engine):
    async def collective_rpc(self, method, args=()):
        return super().collective_rpc(method, args)

    async def pause_generation(self, *, mode, clear_cache):
        self.said.append(f"pause {mode} {clear_cache}")

    async def resume_generation(self):
        self.said.append("resume")


@pytest.mark.parametrize("asynchronous", [False, True])
def test_change_over(vllm, layout, hashes, checkpoint, tmp_path, monkeypatch,
                     asynchronous):
    """All layers move, between two steps, and caches of prompts are dropped."""
    other = engramd.synth(tmp_path / "other", *SHAPE, "--engram-vocab-size",
                          "1000", "--seed", "1")
    server = start(tmp_path, {"demo": checkpoint})
    monkeypatch.setenv("ENGRAMD_SOCKET", str(server.socket))
    try:
        with engram_client.Client(server.socket) as client:
            client.load("demo")
            model = build(layout)
            engine = AsyncEngine() if asynchronous else Engine()

            def move():
                if asynchronous:
                    return asyncio.run(plugin.change_over_async(engine))
                return plugin.change_over(engine)

            assert move() is None
            client.reload("demo", checkpoint=str(other))
            engine.said.clear()
            moved = move()
            assert [(one["layer_id"], one["generation"], one["current"])
                    for one in moved] == [(3, 2, 2), (9, 2, 2)]
            assert {one["content_id"] for one in moved} != {None}
            assert engine.said == [
                "engram_prepare", "pause wait True", "engram_refresh",
                "resume"] if asynchronous else [
                "engram_prepare", "engram_refresh", "reset"]
            for layer in LAYERS:
                assert np.array_equal(
                    rows(model, layer, hashes).double().numpy(),
                    rows_of.lookup(layer | 1 << 14, hashes[
                        :, LAYERS.index(layer)].numpy(), DIM))
        forget()
    finally:
        server.stop()


def test_workers_that_do_not_agree():
    assert plugin._agreed([[0, 0], [0, 0]]) is None
    assert plugin._agreed([[0, 2], [2, 2]]) == 2
    with pytest.raises(errors.Busy, match="once more"):
        plugin._agreed([[2, 2], [3, 3]])


def test_refusals(vllm, layout, monkeypatch):
    config = module("config").VllmConfig()
    config.engram_config.cpu_offload = False
    with pytest.raises(errors.ConfigInvalid, match="cpu_offload"):
        build(layout, config)
    config = module("config").VllmConfig(
        additional_config={"engramd": {"scket": "x"}})
    with pytest.raises(errors.ConfigInvalid, match="scket: unknown key"):
        build(layout, config)
    monkeypatch.setattr(vllm, "__version__", "0.35.1")
    with pytest.raises(errors.VersionMismatch,
                       match="checked against vLLM 0.33, 0.34, this is 0.35"):
        build(layout)


def test_another_models_table(vllm, layout):
    """Same rows and width, other primes: the hash would look elsewhere."""
    def swapped():
        made = layout()
        first = made.primes[0][0]
        first[0], first[1] = first[1], first[0]
        return made

    with pytest.raises(errors.GeometryMismatch):
        build(swapped)
    assert not plugin._embeddings


def test_which_table():
    def table(name, state, *layers):
        return {"name": name, "state": state, "layers": [
            {"layer_id": id, "rows": rows, "dim": 64} for id, rows in layers]}

    def choose(*tables, name=None):
        return plugin.choose(tables, name, (3, 9), (10, 20), 64)

    fits = table("a", "ready", (3, 10), (9, 20))
    other = table("b", "ready", (3, 11), (9, 20))
    assert choose(fits, other) == "a"
    assert choose(other, table("c", "loading")) is None
    assert choose(table("c", "loading"), name="c") is None
    assert choose(fits, name="a") == "a"
    with pytest.raises(errors.NotFound, match="it has: a"):
        choose(fits, name="d")
    with pytest.raises(errors.NotFound, match="no table of engramd has"):
        choose(other)
    with pytest.raises(errors.InvalidArgument, match="several"):
        choose(fits, {**fits, "name": "e"})


def test_waits_for_the_table(vllm, layout, own_sidecar, monkeypatch, hashes):
    """vLLM and its sidecar may start together."""
    monkeypatch.setenv("ENGRAMD_SOCKET", str(own_sidecar.socket))

    def load():
        with engram_client.Client(own_sidecar.socket) as client:
            client.load("demo")

    loading = threading.Timer(0.3, load)
    loading.start()
    model = build(layout)
    loading.join()
    assert np.array_equal(rows(model, 3, hashes).double().numpy(),
                          wanted(3, hashes))
    short = module("config").VllmConfig(additional_config={
        "engramd": {"socket": str(own_sidecar.socket), "table": "big",
                    "wait_seconds": 0.3}})
    with pytest.raises(errors.NotReady, match="big is absent"):
        build(layout, short)
    forget()


def test_registered_before_and_after_the_import(monkeypatch):
    """Whichever comes first."""
    forget()
    monkeypatch.syspath_prepend(str(STANDIN))
    module("models.deepseek_v41.nvidia.model")
    plugin.register()
    engram = module("models.deepseek_v41.common.engram")
    assert engram.Engram._create_embedding.engramd
    assert module("models.deepseek_v41.nvidia.model") \
        .can_share_engram_tables is engram.can_share_engram_tables
    forget()


def test_entry_point():
    """As pip makes it known to vLLM."""
    tomllib = pytest.importorskip("tomllib")
    text = (pathlib.Path(engram_client.__file__).parents[1] /
            "pyproject.toml").read_text()
    points = tomllib.loads(text)["project"]["entry-points"]
    name, function = points["vllm.general_plugins"]["engram"].split(":")
    assert getattr(importlib.import_module(name), function) is plugin.register
