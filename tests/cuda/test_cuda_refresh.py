# SPDX-License-Identifier: Apache-2.0
"""libengram_cuda changes over to the next generation and the next engramd,
between two steps: on a GPU, of a graph that was captured once.

Without a GPU the client runs on the fake one of this folder.
"""
import re

import pytest

from test_cuda_gather import BUILD, SHAPE, Probe, engramd, has_gpu

REGISTERED, DEVICE, HOST = 0, 1, 2
STATUS = {name: int(number) for name, number in re.findall(
    r"ENGRAM_E(\w+) = (\d+)",
    (engramd.ROOT / "shm/engram_status.h").read_text())}
PROGRAMS = [BUILD / "tests" / "refresh_cuda_fake",
            pytest.param(BUILD / "tests" / "refresh_cuda",
                         marks=pytest.mark.skipif(not has_gpu(),
                                                  reason="no GPU here"))]


class Engine(Probe):
    def __init__(self, program, server, placement=REGISTERED, tokens=40):
        # pylint: disable=super-init-not-called
        self.process = engramd.subprocess.Popen(
            [program, server.socket, "demo", str(placement), str(tokens)],
            stdin=engramd.subprocess.PIPE, stdout=engramd.subprocess.PIPE,
            text=True)
        self.opened = self.read()

    def read(self):
        line = self.process.stdout.readline()
        at = line.find("ok ")
        assert at >= 0 and not line.startswith("failed"), line
        words = line[:at].split() + line[at:].split()[1:]
        return {key: float(value) for key, value in
                (word.split("=") for word in words)}


@pytest.fixture(scope="module")
def seeds(tmp_path_factory):
    root = tmp_path_factory.mktemp("seeds")
    return [engramd.synth(root / str(seed), *SHAPE, "--dim", "64", "--seed",
                          str(seed)) for seed in (0, 1)]


@pytest.fixture
def server(seeds, tmp_path):
    server = engramd.Sidecar(
        tmp_path, [{"name": "demo", "checkpoint": str(seeds[0])}])
    server.client().have("demo")
    yield server
    server.stop()


@pytest.fixture(params=PROGRAMS)
def program(request):
    return request.param


def reload(server, checkpoint):
    client = server.client()
    job = client.finish(client.call(
        "reload", table="demo", checkpoint=str(checkpoint),
        force=True)["job"])
    assert job["state"] == "done", job
    return client


def settled(client, expected):
    engramd.until(
        lambda: {g["generation"]: g["leases"] for g in
                 client.table("demo")["generations"]} == expected,
        f"{expected} leases")


@pytest.mark.parametrize("placement", [REGISTERED, DEVICE])
def test_ten_reloads(program, server, seeds, placement):
    engine = Engine(program, server, placement)
    engine.do("step", 3, 1)
    before = engine.opened
    for turn in range(10):
        client = reload(server, seeds[(turn + 1) % 2])
        # it goes on with what it has
        assert engine.do("step", 2, turn)["generation"] == turn + 1
        assert engine.do("prepare")["prepared"] == turn + 2
        assert engine.do("step", 2, turn)["generation"] == turn + 1
        assert engine.do("refresh", turn + 2, turn)["generation"] == turn + 2
        assert engine.do("step", 2, turn)["generation"] == turn + 2
        assert engine.do("prepare")["prepared"] == 0
        settled(client, {turn + 2: 1})
    after = engine.do("step", 1, 99)
    assert after["registered"] == before["registered"]
    assert after["device_bytes"] == before["device_bytes"]
    for key in "ranges", "allocations":
        assert after.get(key) == before.get(key)
    engine.end()


def test_not_while_captured(program, server, seeds):
    engine = Engine(program, server)
    reload(server, seeds[1])
    engine.do("prepare")
    assert engine.do("captured")["generation"] == 1
    assert engine.do("refresh", 2, 1)["generation"] == 2
    engine.end()


def test_ends_with_what_is_prepared(program, server, seeds):
    """Nothing is left registered, or leased."""
    engine = Engine(program, server)
    client = reload(server, seeds[1])
    assert engine.do("prepare")["prepared"] == 2
    engine.end()
    settled(client, {2: 0})


def test_next_engramd(program, server):
    """What it adopts stays registered where it is."""
    engine = Engine(program, server)
    server.kill()
    engine.do("step", 2, 1)
    server.start()
    client = server.client()
    assert client.have("demo")["adopted"]
    assert engine.do("prepare")["prepared"] == 1
    after = engine.do("refresh", 1, 5)
    assert after["generation"] == 1
    assert after.get("registered_ever") == engine.opened.get("registered_ever")
    settled(client, {1: 1})
    engine.end()


def test_withdrawn(program, server):
    """The engine is told, and goes on meanwhile."""
    engine = Engine(program, server)
    client = server.client()
    job = client.call("unload", table="demo")["job"]
    assert engine.do("prepare")["status"] == STATUS["DRAINING"]
    engine.do("step", 2, 1)
    client.call("job.cancel", job=job)
    engramd.until(lambda: engine.do("prepare")["status"] == 0, "it is back")
    engine.do("step", 2, 2)
    engine.end()


def test_ends_while_a_thread_is_told(program, server):
    engine = Engine(program, server)
    job = server.client().call("unload", table="demo")["job"]
    assert engine.do("begin")["status"] == STATUS["NOTREADY"]
    engine.end()
    assert server.client().finish(job)["state"] == "done"


@pytest.fixture
def in_place(seeds, tmp_path):
    server = engramd.Sidecar(
        tmp_path, [{"name": "demo", "checkpoint": str(seeds[0]),
                    "reload": {"mode": "in_place", "settle_seconds": 0}}])
    yield server
    engramd.stop_all([server])


@pytest.mark.parametrize("placement", [REGISTERED, DEVICE])
def test_in_place(program, seeds, in_place, placement):
    """What is registered stays so, and the graph reads the next generation."""
    server = in_place
    client = server.client()
    client.have("demo")
    engine = Engine(program, server, placement)
    engine.do("step", 3, 1)
    for turn in range(1, 4):
        job = client.call("reload", table="demo",
                          checkpoint=str(seeds[turn % 2]))["job"]
        engramd.until(lambda: client.table("demo")["state"] == "draining",
                      "clients are told")
        engine.do("step", 1, turn)
        if turn == 2:  # parks while a thread is told that
            assert engine.do("begin")["status"] == STATUS["NOTREADY"]
        else:
            assert engine.do("prepare")["status"] == STATUS["DRAINING"]
        assert engine.do("park")["status"] == 0
        assert client.finish(job)["state"] == "done"
        assert engine.do("prepare")["prepared"] == turn + 1
        # no step is under way: that would be of what has parked
        assert engine.do("move", turn + 1, turn)["generation"] == turn + 1
        assert engine.do("prepare")["prepared"] == 0
        settled(client, {turn + 1: 1})
    after = engine.do("step", 1, 99)
    if placement == REGISTERED:
        assert after.get("registered_ever") == engine.opened.get(
            "registered_ever")
    for key in "ranges", "allocations":
        assert after.get(key) == engine.opened.get(key)
    client.call("reload", table="demo", checkpoint=str(seeds[0]))
    engramd.until(lambda: client.table("demo")["state"] == "draining",
                  "clients are told")
    assert engine.do("park")["status"] == 0
    engine.end()
    engramd.until(lambda: client.table("demo")["state"] == "ready",
                  "one that has parked may leave")


def test_faults(server, seeds):
    """Each CUDA call of preparing and changing over fails in turn."""
    engine = Engine(PROGRAMS[0], server)
    moves = call = 0
    while True:
        call += 1
        reload(server, seeds[call % 2])
        got = engine.do("fault", call)
        moves += got["moved"]
        if got["moved"] and got["calls"] < call:
            break
        # the same again, without a fault
        if not got["moved"]:
            engramd.until(lambda: engine.do("prepare")["prepared"],
                          "it is prepared after all")
            engine.do("refresh", 0, call)
        assert engine.do("prepare")["prepared"] == 0
    assert call - moves > 10
    for key in "ranges", "allocations":
        assert engine.do("step", 1, 1)[key] == engine.opened[key]
    engine.end()
