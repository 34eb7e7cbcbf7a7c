# SPDX-License-Identifier: Apache-2.0
"""Each allocation of each request fails in turn: the answer is an error or the
end of that connection, never of the sidecar, and nothing leaks."""
import json
import mmap
import os
import struct

import pytest

import engramd
from test_gather import attach, open_ring, ring_file
from test_metrics import address, connect, parse, read_all, scrape, split

PRELOAD = engramd.BUILD / "tests" / "fail_malloc.so"
LIMIT = 2000  # allocations of one request; there are far fewer

pytestmark = pytest.mark.skipif(
    any(word in engramd.BUILD.name for word in ("asan", "tsan")),
    reason="sanitizers have an allocator of their own")


class Countdown:
    def __init__(self, path):
        path.write_bytes(bytes(8))
        with open(path, "r+b") as f:
            self.page = mmap.mmap(f.fileno(), 8)

    def set(self, n):
        self.page[:] = struct.pack("<q", n)

    def get(self):
        return struct.unpack("<q", self.page[:])[0]


@pytest.fixture
def starved(make, checkpoint, tmp_path, monkeypatch):
    """A sidecar with a loaded table, and its countdown."""
    path = tmp_path / "countdown"
    countdown = Countdown(path)
    monkeypatch.setenv("FAIL_MALLOC_FILE", str(path))
    monkeypatch.setenv("LD_PRELOAD", str(PRELOAD))
    sidecar = make([{"name": "demo", "checkpoint": str(checkpoint),
                     "load": "on_demand"}], memory={"lock": "off"},
                   metrics={"listen": "127.0.0.1:0"})
    monkeypatch.undo()
    sidecar.client().load("demo")
    return sidecar, countdown


REQUESTS = [
    ("ping", {}), ("version", {}), ("rpc.discover", {}), ("status", {}),
    ("tables", {}), ("attach", {"table": "demo"}), ("clients", {}),
    ("client.name", {"name": "x"}), ("job.get", {"job": 1}),
    ("job.wait", {"job": 1}), ("events.subscribe", {}), ("config.get", {}),
    ("config.validate", {"config": {"instance": "x", "tables": [
        {"name": "a", "checkpoint": "/nowhere", "layers": [1, 2]}]}}),
    ("load", {"table": "demo"}), ("config.reload", {}),
    ("log.set_level", {"level": "debug"}), ("no.such.method", {}),
    ("attach", {"table": "nowhere"})]


def outcome(client, line):
    """"ok", the name of an error, or "closed"."""
    try:
        client.send(line)
        answer = client.read()
        while answer is not None and "id" not in answer:
            answer = client.read()
    except (BrokenPipeError, ConnectionResetError):
        return "closed"
    if answer is None:
        return "closed"
    return answer["error"]["data"]["name"] if "error" in answer else "ok"


@pytest.mark.parametrize("method, params", REQUESTS)
def test_request(starved, method, params):
    sidecar, countdown = starved
    before = sidecar.fd_count()
    line = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method,
                       "params": params}).encode() + b"\n"
    with sidecar.connection() as client:
        client.greet()
        expected = outcome(client, line)
    for n in range(1, LIMIT):
        with sidecar.connection() as client:
            client.greet()
            countdown.set(n)
            got = outcome(client, line)
            met = countdown.get() == 0
            countdown.set(0)
            assert got in ("OutOfMemory", "InternalError", "closed",
                           expected), (n, got)
        if not met:
            assert got == expected
            break
    else:
        raise AssertionError(f"more than {LIMIT} allocations")
    sidecar.ping()
    engramd.until(lambda: sidecar.fd_count() == before,
                  "descriptors return")
    client = sidecar.clients[0]
    assert client.table("demo")["leases"] == 0
    assert client.table("demo")["state"] == "ready"


@pytest.mark.parametrize("path, code", [
    ("/metrics", 200), ("/readyz", 200), ("/nowhere", 404)])
def test_http(starved, path, code):
    """An answer is whole, or says that there is no memory, or there is none."""
    sidecar, countdown = starved
    where = address(sidecar)
    engramd.until(lambda: sidecar.connections() == 1, "only the fixture's")
    before = sidecar.fd_count()
    families = scrape(where).keys()
    refused = 0
    for n in range(1, LIMIT):
        countdown.set(n)
        try:
            with connect(where) as sock:
                sock.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n"
                             .encode())
                answer = read_all(sock)
        except (BrokenPipeError, ConnectionResetError):
            answer = b""
        met = countdown.get() == 0
        countdown.set(0)
        if answer:
            got, fields, body = split(answer)
            assert len(body) == int(fields["Content-Length"])
            if (got, body) == (503, b"no memory\n"):
                refused += 1
                continue
            assert got == code
            if path == "/metrics":
                assert parse(body.decode())[0].keys() == families
        if not met:
            assert answer
            break
        sidecar.ping()
    else:
        raise AssertionError(f"more than {LIMIT} allocations")
    assert n > 5  # some did fail
    assert refused or path == "/nowhere"
    engramd.until(lambda: sidecar.fd_count() <= before, "all are closed")


def open_and_close(client, lease, fd):
    """"ok", or as outcome()."""
    try:
        ring = open_ring(client, fd, lease=lease)["ring"]
        client.call("gather.bind", ring=ring, lease=lease)
        client.call("gather.close", ring=ring)
    except engramd.RpcError as error:
        return error.name
    except (AssertionError, BrokenPipeError, ConnectionResetError):
        return "closed"
    return "ok"


def test_gather(starved):
    sidecar, countdown = starved
    before = sidecar.fd_count()
    fd = ring_file()
    for n in range(1, LIMIT):
        with sidecar.connection() as client:
            client.greet()
            lease = attach(client)
            countdown.set(n)
            got = open_and_close(client, lease, fd)
            met = countdown.get() == 0
            countdown.set(0)
            assert got in ("OutOfMemory", "InternalError", "closed",
                           "ok"), (n, got)
        if not met:
            assert got == "ok"
            break
    os.close(fd)
    client = sidecar.clients[0]
    engramd.until(lambda: client.call("status")["gather"]["rings"] == 0,
                  "no ring is left")
    engramd.until(lambda: sidecar.fd_count() == before,
                  "descriptors return")
    engramd.until(lambda: client.table("demo")["leases"] == 0,
                  "the leases end")
    job = client.call("unload", table="demo")["job"]
    assert client.finish(job)["state"] == "done"


def test_connect(starved):
    sidecar, countdown = starved
    before = sidecar.fd_count()
    for n in range(1, LIMIT):
        countdown.set(n)
        with sidecar.connection() as client:
            line = client.read()
            met = countdown.get() == 0
            countdown.set(0)
            if line and "error" in line:
                assert line["error"]["data"]["name"] == "OutOfMemory"
            elif line:
                assert line["method"] == "hello"
        if not met:
            break
    sidecar.ping()
    engramd.until(lambda: sidecar.fd_count() == before,
                  "descriptors return")


def test_load_and_unload(starved, checkpoint):
    """A load fails as a whole, and the next one succeeds."""
    sidecar, countdown = starved
    client = sidecar.clients[0]
    names, before = sidecar.names(), sidecar.fd_count()
    threads = len(sidecar.threads())
    load = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "load",
                       "params": {"table": "x",
                                  "checkpoint": str(checkpoint)}})
    n = 0
    met = True
    while met:
        # dense where the request is handled, sparser in the job's thousands
        n += 1 + n // 20
        with sidecar.connection() as other:
            other.greet()
            countdown.set(n)
            outcome(other, load.encode() + b"\n")
            # not asked of the sidecar, which would have to allocate
            engramd.until(lambda: len(sidecar.threads()) == threads,
                          "the job's threads end")
            met = countdown.get() == 0
            countdown.set(0)
        engramd.until(lambda: client.call("status")["jobs"] == [],
                      "the job ends")
        tables = {t["name"]: t for t in client.call("tables")["tables"]}
        if "x" in tables and not met:
            assert tables["x"]["state"] == "ready"
        if "x" in tables:
            job = client.call("unload", table="x")["job"]
            if job:
                client.finish(job)
        engramd.until(lambda: sidecar.connections() == 1, "one is left")
        assert sidecar.names() == names, n
        assert sidecar.fd_count() == before, n
    assert client.table("demo")["state"] == "ready"


