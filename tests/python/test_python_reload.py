# SPDX-License-Identifier: Apache-2.0
"""Replacing a table while Python reads it.  The two checkpoints differ in their
rows alone."""
import asyncio
import gc
import os
import subprocess
import sys

import numpy as np
import pytest

import engram_client
import engramd
import rows_of
from python_setting import COLS, DIM, LAYERS, ROOT, SHAPE, start
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


def test_refresh(reloader, seeds):
    """Polled at no cost, prepared beside, changed over to when it suits."""
    with reloader.attach("demo") as table:
        assert table.prepare() == 0 and not table.refresh()
        reloader.reload("demo", checkpoint=str(seeds[1]))
        assert (table.poll(), table.generation) == (2, 1)
        assert table.prepare() == 2
        assert (table.generation, seed_of(table)) == (1, 0)
        assert table.refresh(2)
        assert (table.generation, table.poll()) == (2, 2)
        assert all(seed_of(table, layer) == 1 for layer in LAYERS)
        assert table.content_id == reloader.table("demo")["content_id"]
        assert table.prepare() == 0 and not table.refresh()
        reloader.reload("demo", checkpoint=str(seeds[0]))
        assert table.refresh()  # without preparing
        assert (table.generation, seed_of(table)) == (3, 0)


def test_refresh_to_what_is_not_prepared(reloader, seeds):
    with reloader.attach("demo") as table:
        reloader.reload("demo", checkpoint=str(seeds[1]))
        with pytest.raises(errors.GenerationGone):
            table.refresh(2)
        assert seed_of(table) == 0
        assert table.refresh() and seed_of(table) == 1


def leases(client):
    return {one["generation"]: one["leases"]
            for one in client.table("demo")["generations"]}


def test_views_look_on_at_what_they_were_made_of(reloader, seeds):
    with reloader.attach("demo") as table:
        old = table.weight_view(3, as_torch=False)
        reloader.reload("demo", checkpoint=str(seeds[1]))
        assert table.refresh()
        new = table.weight_view(3, as_torch=False)
        for view, seed in ((old, 0), (new, 1)):
            assert view[7].tobytes() == rows_of.record(3 | seed << 14, 7,
                                                       DIM)[0]
        assert leases(reloader) == {1: 1, 2: 1}
        del old, view
        gc.collect()
        engramd.until(lambda: 1 not in leases(reloader), "the old one goes")
    assert new[7].tobytes() == rows_of.record(3 | 1 << 14, 7, DIM)[0]


def test_gather_follows(reloader, seeds):
    with reloader.attach("demo") as table, table.gather() as gather:
        assert np.array_equal(values(gather.lookup(FIRST, 9)), rows(9, 0))
        reloader.reload("demo", checkpoint=str(seeds[1]))
        table.refresh()
        assert np.array_equal(values(gather.lookup(FIRST, 9)), rows(9, 1))


def test_a_restarted_engramd(server, seeds):
    """The table reads on; a refresh leases it anew."""
    with Client(server.socket) as client:
        table = client.attach("demo")
        server.kill()
        assert seed_of(table) == 0
        server.start()
        server.client().have("demo")
        engramd.until(lambda: table.poll() == 0, "another engramd is seen")
        assert seed_of(table) == 0
        assert table.refresh()
        assert (seed_of(table), table.poll()) == (0, table.generation)
        assert client.table("demo")["leases"] == 1
        table.detach()


def test_withdrawn(reloader):
    with reloader.attach("demo") as table:
        job = reloader.unload("demo", wait=False)["job"]
        assert table.poll() == 0
        with pytest.raises(errors.Draining):
            table.prepare()
        assert seed_of(table) == 0
        reloader.cancel(job)


READER = """
import sys, numpy as np, engram_client
first = np.arange(int(sys.argv[2]), dtype=np.int32)[None]
with engram_client.Client(sys.argv[1]) as client:
    table = client.attach("demo")
    seen, steps, wrong = {}, 0, 0
    print("attached", flush=True)
    while len(seen) < 2 or steps < 200 or table.generation < int(sys.argv[3]):
        if table.poll() not in (0, table.generation):
            table.refresh()
        rows = [table.lookup(first, layer).tobytes() for layer in table.layers]
        before = seen.setdefault(table.content_id, rows)
        wrong += rows != before
        steps += 1
    print(wrong, len(seen), flush=True)
"""


def test_reloads_under_load(server, seeds):
    """Three processes look rows up without a pause while the table is replaced
    back to back: every step is of one generation."""
    reloads = 6
    readers = [subprocess.Popen(
        [sys.executable, "-c", READER, server.socket, str(COLS),
         str(1 + reloads)], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "clients/python")})
        for _ in range(3)]
    try:
        for reader in readers:
            assert reader.stdout.readline() == "attached\n"
        with Client(server.socket) as client:
            for turn in range(1, reloads + 1):
                job = client.reload("demo", checkpoint=str(seeds[turn % 2]))
                assert job["generation"] == 1 + turn
        for reader in readers:
            wrong, contents = map(int, reader.stdout.readline().split())
            assert (wrong, contents) == (0, 2)
            assert reader.wait(engramd.DEADLINE) == 0
    finally:
        for reader in readers:
            reader.kill()
            reader.wait()
            reader.stdout.close()


@pytest.fixture
def in_place(seeds, tmp_path):
    server = engramd.Sidecar(tmp_path, [{
        "name": "demo", "checkpoint": str(seeds[0]),
        "reload": {"mode": "in_place", "settle_seconds": 0}}])
    yield server
    engramd.stop_all([server])


def test_in_place(seeds, in_place):
    """The next generation in the memory that is mapped."""
    server = in_place
    reloading = server.client()
    reloading.have("demo")
    with Client(server.socket) as client:
        table = client.attach("demo")
        assert seed_of(table) == 0
        view = table.weight_view(9, as_torch=False)
        where = view.ctypes.data
        job = reloading.call("reload", table="demo",
                             checkpoint=str(seeds[1]))["job"]
        engramd.until(lambda: table.poll() == 0, "it is withdrawn")
        assert seed_of(table) == 0
        with pytest.raises(errors.Busy, match="views"):
            table.park()
        del view
        table.park()
        with pytest.raises(errors.NotReady, match="parked"):
            table.lookup(FIRST, 9)
        assert reloading.finish(job)["state"] == "done"
        assert table.refresh()
        assert seed_of(table) == 1 and table.generation == 2
        assert table.weight_view(9, as_torch=False).ctypes.data == where
