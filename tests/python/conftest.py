# SPDX-License-Identifier: Apache-2.0
import importlib

import pytest

from python_setting import COLS, DIM, HEADS, LAYERS, SHAPE, start

import engram_client
import engramd


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """Layer ids that are no indices, heads that no rank count divides."""
    return engramd.synth(tmp_path_factory.mktemp("python") / "model", *SHAPE,
                         "--engram-vocab-size", "1000")


@pytest.fixture(scope="session")
def big_checkpoint(tmp_path_factory):
    """Large enough that its load can be caught while it runs."""
    return engramd.synth(tmp_path_factory.mktemp("python") / "big", *SHAPE,
                         "--engram-vocab-size", "200000")


@pytest.fixture(scope="module")
def sidecar(checkpoint, big_checkpoint, tmp_path_factory):
    """With "demo" loaded and "big" not."""
    server = start(tmp_path_factory.mktemp("sidecar"),
                   {"demo": checkpoint, "big": big_checkpoint})
    with engram_client.Client(server.socket) as client:
        client.load("demo")
    yield server
    server.stop()


@pytest.fixture
def own_sidecar(checkpoint, big_checkpoint, tmp_path):
    """For tests that stop it or kill it."""
    server = start(tmp_path, {"demo": checkpoint, "big": big_checkpoint})
    yield server
    server.stop()


@pytest.fixture
def client(sidecar):
    with engram_client.Client(sidecar.socket) as client:
        yield client


@pytest.fixture
def table(client):
    with client.attach("demo") as table:
        yield table


@pytest.fixture(params=["numpy", "torch"])
def xp(request):
    """NumPy, or torch if it is there."""
    return pytest.importorskip(request.param)


# ---- for the vLLM plugin ----

@pytest.fixture
def layout(client):
    """layout(module): the model's EngramLayout, with the table's numbers."""
    with client.attach("demo") as table:
        sizes = [table.head_rows(layer) for layer in LAYERS]
        rows = [table.layer(layer).rows for layer in LAYERS]

    def make(owner=None):
        owner = owner or importlib.import_module(
            "vllm.models.deepseek_v41.common.engram")
        made = owner.EngramLayout.__new__(owner.EngramLayout)
        made.layer_ids, made.num_embeddings = LAYERS, tuple(rows)
        made.primes = [[layer[i:i + HEADS] for i in range(0, COLS, HEADS)]
                       for layer in sizes]
        made.head_dim = DIM
        return made

    return make


@pytest.fixture
def hashes(client):
    torch = pytest.importorskip("torch")
    with client.attach("demo") as table:
        ids = table.hash(torch.arange(30, dtype=torch.int32) * 7 % 500)
    ids[4] = -1  # a padded token
    return ids
