# SPDX-License-Identifier: Apache-2.0
"""libengram_cuda and a real engramd that gathers: the rows of every path are
those of engram_lookup, with engramd stopped and killed, too.

Without a GPU the client runs on the fake one of this folder, whose streams do
at once what they are told.
"""
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "integration"))
import engramd  # noqa: E402 pylint: disable=wrong-import-position
from engramd import BUILD, DEADLINE, has_gpu  # noqa: E402

REGISTERED, HOST = 0, 2
PATH_HOST, PATH_HYBRID = 2, 3
SHAPE = ("--layers", "1,14", "--heads", "4", "--max-ngram", "3",
         "--vocab-size", "600", "--compressed-vocab-size", "500",
         "--engram-vocab-size", "2000")


PROBES = [BUILD / "tests" / "gather_cuda_fake",
          pytest.param(BUILD / "tests" / "gather_cuda",
                       marks=pytest.mark.skipif(not has_gpu(),
                                                reason="no GPU here"))]


class Probe:
    def __init__(self, program, server, *, placement=REGISTERED, slots=2,
                 max_rows=4096, timeout_ms=20000, prefetch_slots=3,
                 cache_bytes=0, deduplicate=0):
        words = (server.socket, "demo", placement, slots, max_rows, timeout_ms,
                 prefetch_slots, cache_bytes, deduplicate)
        self.process = subprocess.Popen(
            [program, *map(str, words)], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True)
        self.opened = self.read()

    def read(self):
        line = self.process.stdout.readline()
        assert line.startswith("ok "), line
        return {key: int(value) for key, value in
                (word.split("=") for word in line.split()[1:])}

    def do(self, *words):
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        return self.read()

    def end(self):
        self.process.stdin.close()
        assert self.process.wait(DEADLINE) == 0


# Of the handle: as it is by default, with a cache of a few rows, with one of
# all, and with repeated rows gathered once.
SIEVES = [{}, {"cache_bytes": 40000}, {"cache_bytes": 64 << 20},
          {"deduplicate": 1}]


@pytest.fixture(params=SIEVES, ids=["plain", "small", "large", "once"])
def sieve(request):
    return request.param


# Where not all may be in the cache.
@pytest.fixture(params=[SIEVES[0], SIEVES[1], SIEVES[3]],
                ids=["plain", "small", "once"])
def part(request):
    return request.param


@pytest.fixture(params=[64, 256], scope="module")
def checkpoints(request, tmp_path_factory):
    """Of the same kind, with other rows."""
    root = tmp_path_factory.mktemp("models")
    return [engramd.synth(root / seed, *SHAPE, "--dim", str(request.param),
                          "--seed", seed) for seed in "01"]


@pytest.fixture
def server(checkpoints, tmp_path):
    server = engramd.Sidecar(
        tmp_path, [{"name": "demo", "checkpoint": str(checkpoints[0]),
                    "load": "on_demand"}], gather={"threads": 2})
    with server.connection() as client:
        client.greet()
        client.load("demo")
    yield server
    server.stop()


@pytest.fixture(params=PROBES)
def program(request):
    return request.param


@pytest.mark.parametrize("placement", [REGISTERED, HOST])
def test_same_rows(program, server, placement, sieve):
    probe = Probe(program, server, placement=placement, **sieve)
    for tokens in (1, 2, 7, 31, 500, 1024, 2000):
        got = probe.do("lookup", 2, tokens, tokens)
    assert got["fallback"] == 0 and got["failed"] == 0
    assert got["posted"] > 0
    probe.end()


@pytest.mark.parametrize("placement", [REGISTERED, HOST])
@pytest.mark.parametrize("layout", [0, 1])
def test_as_stored(program, server, placement, layout, sieve):
    """More tokens than the ring holds, too: parts end where tiles do."""
    if layout and program == PROBES[0]:
        pytest.skip("the fake device writes plain scales only")
    probe = Probe(program, server, placement=placement, **sieve)
    for tokens in (1, 7, 128, 130, 500, 2000):
        got = probe.do("raw", tokens, tokens, layout)
    assert got["fallback"] == 0 and got["failed"] == 0
    probe.end()


def sieved(probe, *words):
    """What a command adds to the counts."""
    before = probe.do("lookup", 0, 1, 1)
    after = probe.do(*words)
    return {key: after[key] - before[key] for key in after}


@pytest.mark.parametrize("placement", [REGISTERED, HOST])
def test_cache(program, server, placement):
    """What is looked up again is there, and is fetched no more."""
    probe = Probe(program, server, placement=placement,
                  cache_bytes=64 << 20)
    paths = 4 if placement == REGISTERED else 3
    rows = 2 * paths * 500 * 8  # of both layers
    first = sieved(probe, "skewed", 1, 500, 1)
    assert first["rows"] == rows
    # the first of the paths has fetched what the others find
    assert rows * (paths - 1) / paths * 0.9 < first["hits"] < rows
    assert 0 < first["repeats"] < rows / paths
    assert 0 < first["fills"] < rows / paths
    again = sieved(probe, "skewed", 1, 500, 1)
    assert again["hits"] == rows - again["misses"]
    assert (again["fills"], again["posted"]) == (0, 0)
    assert again["misses"] == first["misses"] > 0
    probe.end()


def test_cache_keeps_what_is_asked_for(program, server):
    """A few rows that come often stay, though many pass by."""
    probe = Probe(program, server, cache_bytes=200000)
    assert 400 < probe.opened["entries"] < 3000
    for seed in range(4):
        probe.do("skewed", 1, 200, 10 + seed)
    probe.do("lookup", 2, 500, 20)
    got = sieved(probe, "skewed", 1, 200, 30)
    assert got["hits"] > got["rows"] * 0.6
    probe.end()


def test_repeated(program, server):
    """Rows that are in a batch twice are gathered once; the counts of misses
    stay what they are."""
    counts = []
    for deduplicate in (0, 1):
        probe = Probe(program, server, max_rows=16384,
                      deduplicate=deduplicate)
        counts.append(sieved(probe, "skewed", 1, 1500, 1))
        probe.end()
    assert counts[0]["rows"] == 0
    # of host, hybrid and auto those that are gathered
    assert counts[1]["rows"] >= 2 * 1500 * 8
    assert counts[1]["repeats"] > counts[1]["rows"] / 2
    assert counts[1]["hits"] == counts[1]["fills"] == 0
    assert counts[0]["misses"] == counts[1]["misses"] > 0


@pytest.mark.parametrize("placement", [REGISTERED, HOST])
def test_cache_across_reloads(program, server, checkpoints, placement):
    """No row outlives its generation, nor what comes after a restart."""
    probe = Probe(program, server, placement=placement,
                  cache_bytes=64 << 20)
    for turn in (1, 0):
        probe.do("skewed", 1, 200, 1)
        reload(server, checkpoints[turn])
        probe.do("refresh")
        assert sieved(probe, "skewed", 1, 200, 1)["fills"] > 0
    # the next engramd adopts what its configuration names
    server.kill()
    server.start()
    probe.do("refresh")
    got = sieved(probe, "skewed", 1, 200, 1)
    assert got["fills"] > 0 and got["failed"] == 0
    probe.end()


def test_cache_is_shown(program, server):
    """By engramd, as the client says."""
    probe = Probe(program, server, cache_bytes=64 << 20)
    got = probe.do("skewed", 2, 100, 1)
    with server.connection() as client:
        client.greet()
        told = client.call("status")["gather"]
    assert told["cache_hits"] == got["hits"] > 0
    assert told["cache_lookups"] == got["rows"]
    assert told["repeats"] == got["repeats"]
    probe.end()


def caught_up(probe, *words):
    """Not one row of it without engramd."""
    def answers():
        before = probe.do(*words)["fallback"]
        return probe.do(*words)["fallback"] == before

    engramd.until(answers, "engramd gathers again")


# Where the device can not read the table itself, the client's thread copies.
@pytest.mark.parametrize("placement", [REGISTERED, HOST])
@pytest.mark.parametrize("tokens", [20, 1500])
def test_stopped(program, server, placement, tokens, part):
    probe = Probe(program, server, placement=placement, timeout_ms=200,
                  max_rows=16384, **part)
    probe.do("lookup", 1, tokens, 1)
    server.pause()
    try:
        got = probe.do("lookup", 3, tokens, 2)
        assert got["fallback"] > 0 and got["failed"] == 0
        more = probe.do("raw", tokens, 5, 0)
        assert more["fallback"] > got["fallback"] and more["failed"] == 0
    finally:
        server.resume()
    caught_up(probe, "lookup", 1, tokens, 3)
    probe.end()


@pytest.mark.parametrize("placement", [REGISTERED, HOST])
@pytest.mark.parametrize("tokens", [20, 1500])
def test_killed(program, server, placement, tokens, part):
    probe = Probe(program, server, placement=placement, timeout_ms=200,
                  max_rows=16384, **part)
    probe.do("lookup", 1, tokens, 1)
    server.pause()
    got = probe.do("lookup", 1, tokens, 2)
    server.kill()
    after = probe.do("lookup", 5, tokens, 3)
    assert after["fallback"] > got["fallback"] and after["failed"] == 0
    server.start()
    probe.do("refresh")
    caught_up(probe, "lookup", 1, tokens, 10)
    probe.end()


def reload(server, checkpoint):
    with server.connection() as client:
        client.greet()
        job = client.finish(client.call(
            "reload", table="demo", checkpoint=str(checkpoint),
            force=True)["job"])
    assert job["state"] == "done", job


@pytest.mark.parametrize("placement", [REGISTERED, HOST])
def test_stopped_after_a_reload(program, server, checkpoints, placement):
    probe = Probe(program, server, placement=placement, timeout_ms=200)
    reload(server, checkpoints[1])
    probe.do("refresh")
    got = probe.do("lookup", 1, 20, 1)
    server.pause()
    try:
        after = probe.do("lookup", 2, 20, 2)
    finally:
        server.resume()
    assert after["fallback"] > got["fallback"] and after["failed"] == 0
    probe.end()


@pytest.mark.parametrize("placement", [REGISTERED, HOST])
def test_prefetch(program, server, placement):
    probe = Probe(program, server, placement=placement, max_rows=14000)
    for tokens in (1, 7, 31, 500, 1700):
        for first in range(4):
            probe.do("post", first, tokens, 10 * first)
            probe.do("lookup", 1, tokens, 100 + first)
            probe.do("take", first, tokens, 10 * first)
    # batches of several sizes at once
    probe.do("post", 1, 1700, 1)
    probe.do("post", 1, 3, 2)
    probe.do("post", 1, 0, 3)
    probe.do("take", 1, 1700, 1)
    probe.do("post", 1, 1700, 4)
    probe.do("take", 1, 3, 2)
    probe.do("take", 1, 0, 3)
    got = probe.do("take", 1, 1700, 4)
    assert got["fallback"] == 0 and got["failed"] == 0
    probe.end()


def test_prefetch_refused(program, server):
    probe = Probe(program, server)
    assert probe.do("full", 100, 1)["fallback"] == 0
    assert probe.do("full", 100, 2)["fallback"] == 0
    probe.end()


@pytest.mark.parametrize("placement", [REGISTERED, HOST])
@pytest.mark.parametrize("tokens", [20, 1500])
def test_prefetch_stopped(program, server, placement, tokens):
    """Posted to nobody, then to slots that are not free; taken all the
    same."""
    probe = Probe(program, server, placement=placement, timeout_ms=100,
                  max_rows=16384)
    server.pause()
    try:
        for seed in (1, 10, 20):
            probe.do("post", 3, tokens, seed)
            got = probe.do("take", 3, tokens, seed)
        assert got["fallback"] > 0 and got["failed"] == 0
        probe.do("post", 2, tokens, 30)
    finally:
        server.resume()
    probe.do("take", 2, tokens, 30)

    def answers():
        before = probe.do("post", 3, tokens, 40)["fallback"]
        return probe.do("take", 3, tokens, 40)["fallback"] == before

    engramd.until(answers, "engramd gathers again")
    probe.do("post", 3, tokens, 50)
    server.kill()
    probe.do("take", 3, tokens, 50)
    probe.do("post", 3, tokens, 60)
    server.start()
    assert probe.do("take", 3, tokens, 60)["failed"] == 0
    probe.end()


@pytest.mark.parametrize("placement", [REGISTERED, HOST])
@pytest.mark.parametrize("tokens", [20, 1500])
def test_prefetch_across_a_reload(program, server, checkpoints, placement,
                                  tokens):
    """Rows of the generation before are not taken."""
    probe = Probe(program, server, placement=placement, timeout_ms=100,
                  max_rows=16384)
    probe.do("post", 3, tokens, 1)
    reload(server, checkpoints[1])
    probe.do("take", 1, tokens, 1)
    probe.do("refresh")
    got = probe.do("take", 2, tokens, 2)
    assert got["fallback"] > 0 and got["failed"] == 0
    probe.do("post", 3, tokens, 10)
    assert probe.do("take", 3, tokens, 10)["fallback"] == got["fallback"]
    probe.end()


def test_faults(server):
    probe = Probe(PROBES[0], server)
    probe.do("faults")
    probe.do("lookup", 1, 20, 1)
    probe.end()


@pytest.mark.skipif(not has_gpu(), reason="no GPU here")
@pytest.mark.parametrize("tokens", [20, 1500])
@pytest.mark.parametrize("path", [PATH_HOST, PATH_HYBRID])
def test_graph(server, tokens, path, part):
    """Replays count on; a stopped engramd in between confuses none."""
    probe = Probe(PROBES[1].values[0], server, timeout_ms=200,
                  max_rows=16384, **part)
    probe.do("capture", path, tokens)
    assert probe.do("replay", 50, 1)["fallback"] == 0
    server.pause()
    try:
        missed = probe.do("replay", 5, 100)["fallback"]
        # where the GPU reads faster, a hybrid path leaves nothing to the host
        assert missed > 0 or path == PATH_HYBRID
    finally:
        server.resume()
    caught_up(probe, "replay", 1, 200)
    server.kill()
    assert probe.do("replay", 5, 400)["failed"] == 0
    server.start()
    probe.do("refresh")
    # with the next step that is not replayed, the next engramd has the ring
    probe.do("lookup", 1, tokens, 500)
    caught_up(probe, "replay", 1, 600)
    assert probe.do("replay", 20, 700)["failed"] == 0
    probe.end()
