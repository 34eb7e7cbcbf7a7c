# SPDX-License-Identifier: Apache-2.0
"""Replacing a table while Python reads it.  The two checkpoints differ in their
rows alone."""
import asyncio

import numpy as np
import pytest

import engram_client
import engramd
import rows_of
from conftest import COLS, DIM, SHAPE, start
from engram_client import AsyncClient, Client, errors

FIRST = np.arange(COLS, dtype=np.int32)[None]  # row numbers, one token


@pytest.fixture(scope="session")
def seeds(tmp_path_factory):
    root = tmp_path_factory.mktemp("seeds")
    return [engramd.synth(root / str(seed), *SHAPE, "--engram-vocab-size",
                          "1000", "--seed", str(seed)) for seed in (0, 1)]


@pytest.fixture
def server(seeds, tmp_path):
    made = start(tmp_path, {"demo": seeds[0]})
    with Client(made.socket) as client:
        client.load("demo")
    yield made
    made.stop()


@pytest.fixture
def reloader(server):
    with Client(server.socket) as client:
        yield client


def rows(layer, seed, ids=FIRST):
    return rows_of.lookup(layer | seed << 14, ids, DIM)


def values(found):
    return engram_client.float32(found).astype(np.float64)


def seed_of(table, layer=9):
    """Whose rows the table gives; all of them one's."""
    found = values(table.lookup(FIRST, layer))
    which = [seed for seed in (0, 1)
             if np.array_equal(found, rows(layer, seed))]
    assert len(which) == 1, "rows of two generations, or of none"
    return which[0]


def test_reload(reloader, seeds):
    seen = []
    old = reloader.attach("demo")
    job = reloader.reload("demo", checkpoint=str(seeds[1]),
                          progress=seen.append)
    assert job["kind"] == "reload" and job["generation"] == 2
    assert seen[-1] == job
    assert (seed_of(old), old.generation, old.poll()) == (0, 1, 2)
    with reloader.attach("demo") as new:
        assert (seed_of(new), new.generation) == (1, 2)
        assert new.content_id != old.content_id
    states = {one["generation"]: one["state"]
              for one in reloader.table("demo")["generations"]}
    assert states == {1: "superseded", 2: "current"}
    assert reloader.rollback("demo")["generation"] == 1
    assert old.poll() == 1
    assert reloader.reload("demo")["unchanged"]


def test_held(reloader, seeds):
    """Built now, lent when it is told."""
    reloader.reload("demo", checkpoint=str(seeds[1]), hold=True)
    with reloader.attach("demo") as table:
        assert seed_of(table) == 0
    with pytest.raises(errors.EngramError):
        reloader.publish("demo", content_id="0" * 32)
    held = next(one for one in reloader.table("demo")["generations"]
                if one["state"] == "held")
    done = reloader.publish("demo", content_id=held["content_id"])
    assert done["content_id"] == held["content_id"]
    with reloader.attach("demo") as table:
        assert (seed_of(table), table.generation) == (1, done["generation"])


def test_discarded(reloader, seeds):
    reloader.reload("demo", checkpoint=str(seeds[1]), hold=True)
    reloader.discard("demo")
    with reloader.attach("demo") as table:
        assert seed_of(table) == 0


def test_asyncio(server, seeds):
    async def change():
        async with AsyncClient(server.socket) as client:
            job = await client.reload("demo", checkpoint=str(seeds[1]),
                                      hold=True)
            assert job["state"] == "done"
            await client.discard("demo")
            await client.reload("demo", checkpoint=str(seeds[1]), hold=True)
            done = await client.publish("demo")
            assert done["generation"] != 1
            with await client.attach("demo") as table:
                assert seed_of(table) == 1

    asyncio.run(asyncio.wait_for(change(), 120))


def test_a_broken_checkpoint_leaves_all_as_it_was(reloader, tmp_path):
    with reloader.attach("demo") as table:
        with pytest.raises(errors.EngramError) as caught:
            reloader.reload("demo", checkpoint=str(tmp_path / "none"))
        assert caught.value.path
        assert table.poll() == table.generation == 1
        assert seed_of(table) == 0
