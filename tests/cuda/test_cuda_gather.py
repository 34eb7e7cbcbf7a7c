# SPDX-License-Identifier: Apache-2.0
"""libengram_cuda and a real engramd that gathers: the rows of every path are
those of engram_lookup, with engramd stopped and killed, too.

Without a GPU the client runs on the fake one of this folder, whose streams do
at once what they are told.
"""
import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "integration"))
import engramd  # noqa: E402 pylint: disable=wrong-import-position
from engramd import BUILD, DEADLINE  # noqa: E402

REGISTERED, HOST = 0, 2
PATH_HOST, PATH_HYBRID = 2, 3
SHAPE = ("--layers", "1,14", "--heads", "4", "--max-ngram", "3",
         "--vocab-size", "600", "--compressed-vocab-size", "500",
         "--engram-vocab-size", "2000")


def has_gpu():
    return shutil.which("nvidia-smi") is not None and subprocess.run(
        ["nvidia-smi", "-L"], capture_output=True, check=False,
        timeout=DEADLINE).returncode == 0


PROBES = [BUILD / "tests" / "gather_cuda_fake",
          pytest.param(BUILD / "tests" / "gather_cuda",
                       marks=pytest.mark.skipif(not has_gpu(),
                                                reason="no GPU here"))]


class Probe:
    def __init__(self, program, server, *, placement=REGISTERED, slots=2,
                 max_rows=4096, timeout_ms=20000):
        self.process = subprocess.Popen(
            [program, server.socket, "demo", str(placement), str(slots),
             str(max_rows), str(timeout_ms)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
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


@pytest.fixture(params=[64, 256], scope="module")
def checkpoint(request, tmp_path_factory):
    return engramd.synth(tmp_path_factory.mktemp("model") / "m", *SHAPE,
                         "--dim", str(request.param))


@pytest.fixture
def server(checkpoint, tmp_path):
    server = engramd.Sidecar(
        tmp_path, [{"name": "demo", "checkpoint": str(checkpoint),
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
def test_same_rows(program, server, placement):
    probe = Probe(program, server, placement=placement)
    for tokens in (1, 2, 7, 31, 500, 1024, 2000):
        got = probe.do("lookup", 2, tokens, tokens)
    assert got["fallback"] == 0 and got["failed"] == 0
    assert got["posted"] > 0
    probe.end()


@pytest.mark.parametrize("placement", [REGISTERED, HOST])
@pytest.mark.parametrize("layout", [0, 1])
def test_as_stored(program, server, placement, layout):
    """More tokens than the ring holds, too: parts end where tiles do."""
    if layout and program == PROBES[0]:
        pytest.skip("the fake device writes plain scales only")
    probe = Probe(program, server, placement=placement)
    for tokens in (1, 7, 128, 130, 500, 2000):
        got = probe.do("raw", tokens, tokens, layout)
    assert got["fallback"] == 0 and got["failed"] == 0
    probe.end()


@pytest.mark.parametrize("tokens", [20, 1500])
def test_stopped(program, server, tokens):
    probe = Probe(program, server, timeout_ms=200, max_rows=16384)
    probe.do("lookup", 1, tokens, 1)
    server.pause()
    try:
        got = probe.do("lookup", 3, tokens, 2)
        assert got["fallback"] > 0 and got["failed"] == 0
    finally:
        server.resume()

    def caught_up():
        before = probe.do("lookup", 1, tokens, 3)["fallback"]
        return probe.do("lookup", 1, tokens, 4)["fallback"] == before

    engramd.until(caught_up, "engramd gathers again")
    probe.end()


@pytest.mark.parametrize("tokens", [20, 1500])
def test_killed(program, server, tokens):
    probe = Probe(program, server, timeout_ms=200, max_rows=16384)
    probe.do("lookup", 1, tokens, 1)
    server.pause()
    got = probe.do("lookup", 1, tokens, 2)
    server.kill()
    assert probe.do("lookup", 5, tokens, 3)["fallback"] > got["fallback"]
    probe.end()
    server.start()


def test_not_registered_and_stopped(program, server):
    """Nobody can read the rows: zeros, counted."""
    probe = Probe(program, server, placement=HOST, timeout_ms=100)
    server.pause()
    try:
        got = probe.do("zeros", 100, 1)
    finally:
        server.resume()
    assert got["failed"] > 0 and got["fallback"] == 0
    probe.end()


def test_faults(server):
    probe = Probe(PROBES[0], server)
    probe.do("faults")
    probe.do("lookup", 1, 20, 1)
    probe.end()


@pytest.mark.skipif(not has_gpu(), reason="no GPU here")
@pytest.mark.parametrize("tokens", [20, 1500])
@pytest.mark.parametrize("path", [PATH_HOST, PATH_HYBRID])
def test_graph(server, tokens, path):
    """Replays count on; a stopped engramd in between confuses none."""
    probe = Probe(PROBES[1].values[0], server, timeout_ms=200,
                  max_rows=16384)
    probe.do("capture", path, tokens)
    assert probe.do("replay", 50, 1)["fallback"] == 0
    server.pause()
    try:
        assert probe.do("replay", 5, 100)["fallback"] > 0
    finally:
        server.resume()

    def caught_up():
        before = probe.do("replay", 1, 200)["fallback"]
        return probe.do("replay", 1, 300)["fallback"] == before

    engramd.until(caught_up, "engramd gathers again")
    server.kill()
    assert probe.do("replay", 5, 400)["failed"] == 0
    probe.end()
    server.start()
