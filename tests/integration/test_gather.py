# SPDX-License-Identifier: Apache-2.0
"""Rows gathered through rings: the same as looked up, whatever happens to
engramd, to the client, or to the ring."""
import array
import fcntl
import json
import mmap
import os
import socket
import struct
import subprocess
import time

import pytest


from engramd import BUILD, DEADLINE, RpcError, until

PROBE = BUILD / "tests" / "gather_probe"
F_ADD_SEALS = 1033  # not in fcntl before Python 3.12
COUNTS, CHOICES = 192, 256  # of struct engram_ring_header


class Probe:
    """A process with a ring of its own."""

    def __init__(self, sidecar, *, slots=2, max_rows=2048, timeout_ms=20000,
                 rank=()):
        self.process = subprocess.Popen(
            [PROBE, sidecar.socket, "demo", str(slots), str(max_rows),
             str(timeout_ms), *map(str, rank)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.opened = self.read()

    def read(self):
        line = self.process.stdout.readline()
        assert line.startswith("ok "), line
        return {key: int(value) for key, value in
                (word.split("=") for word in line.split()[1:])}

    def send(self, *words):
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()

    def do(self, *words):
        self.send(*words)
        return self.read()

    def end(self):
        if self.process.poll() is None:
            self.process.stdin.close()
            assert self.process.wait(DEADLINE) == 0

    def kill(self):
        self.process.kill()
        self.process.wait(DEADLINE)


@pytest.fixture
def sidecar(make, checkpoint):
    server = make([{"name": "demo", "checkpoint": str(checkpoint),
                    "load": "on_demand"}], gather={"threads": 2})
    with server.connection() as client:
        client.greet()
        client.load("demo")
    return server


@pytest.fixture
def probe(sidecar):
    made = []

    def start(**more):
        made.append(Probe(sidecar, **more))
        return made[-1]

    yield start
    for one in made:
        if one.process.poll() is None:
            one.end()


def status(sidecar):
    with sidecar.connection() as client:
        client.greet()
        return client.call("status")["gather"]


# ---- the rows ----

@pytest.mark.parametrize("layout", ["packed", "split"])
@pytest.mark.parametrize("rank", [(), (0, 3), (2, 5)])
def test_same_rows(make, checkpoint, layout, rank):
    server = make([{"name": "demo", "checkpoint": str(checkpoint),
                    "layout": layout}], gather={"threads": 2})
    client = server.client()
    until(lambda: client.table("demo")["state"] == "ready", "ready")
    one = Probe(server, rank=rank)
    for tokens in (0, 1, 2, 7, 31, 85, 86, 500):
        got = one.do("lookup", tokens, tokens + 1)
    assert got["own"] == 0 and got["timeouts"] == 0
    assert got["gathered"] > 0
    one.end()
    # a thread counts what it has delivered
    until(lambda: status(server)["rows"] == got["gathered"], "counted")


def test_many_batches(probe, sidecar):
    got = probe().do("repeat", 300, 20, 1)
    assert got["own"] == 0
    assert got["gathered"] == 300 * 2 * 20 * 24
    until(lambda: status(sidecar)["rows"] == got["gathered"], "counted")
    told = status(sidecar)
    assert told["refused"] == 0 and told["threads"] == 2


def test_posted_early(probe):
    one = probe()
    one.do("post", 40, 3)
    assert one.do("take")["gathered"] == 40 * 24


def test_several_clients(probe, sidecar):
    probes = [probe(slots=1 + i % 3, max_rows=600 + 100 * i)
              for i in range(5)]
    assert status(sidecar)["rings"] == 5
    for i, one in enumerate(probes):
        one.send("repeat", 100, 10 + i, i)
    for one in probes:
        assert one.read()["own"] == 0
    for one in probes:
        one.end()
    until(lambda: status(sidecar)["rings"] == 0, "all rings are closed")


def test_small_beside_large(probe):
    """A large batch under way does not keep a small one waiting for ever."""
    large, small = probe(max_rows=196608), probe()
    large.send("repeat", 20, 4000, 1)
    assert small.do("repeat", 200, 2, 1)["own"] == 0
    assert large.read()["own"] == 0


def test_engramctl_shows_it(probe, sidecar):
    one = probe()
    one.do("lookup", 10, 1)
    until(lambda: status(sidecar)["rows"] == 10 * 24 * 2, "counted")
    shown = subprocess.run(
        [BUILD / "bin" / "engramctl", "--socket", sidecar.socket, "status"],
        capture_output=True, text=True, check=True, timeout=DEADLINE).stdout
    line = next(x for x in shown.splitlines() if x.startswith("gather"))
    assert "2 threads" in line and "1 rings of " in line
    assert f"{10 * 24 * 2} rows" in line
    assert "\nauto " not in shown and "\nnot gathered " not in shown


def test_who_uses_it(probe, sidecar):
    """By client: rings, what they are bound to, and what was gathered."""
    one, two = probe(), probe()
    one.do("lookup", 10, 1)
    one.do("lookup", 7, 2)
    with sidecar.connection() as client:
        client.greet()

        def rings():
            return {c["pid"]: c["rings"] for c in
                    client.call("clients")["clients"]}

        # as soon as its rows are there
        assert rings()[one.process.pid][0]["batches"] == 4
        shown = {c["pid"]: c for c in client.call("clients")["clients"]}
        ring, = shown[one.process.pid]["rings"]
        lease, = shown[one.process.pid]["leases"]
        assert ring["leases"] == [lease["lease"]]
        assert ring["rows"] == (10 + 7) * 24 * 2 and ring["refused"] == 0
        assert ring["bytes"] > 0
        idle, = shown[two.process.pid]["rings"]
        assert (idle["batches"], idle["rows"]) == (0, 0)
        assert shown[os.getpid()]["rings"] == []
        one.kill()
        until(lambda: one.process.pid not in rings(), "it has gone")
        assert rings()[two.process.pid] == [idle]


def test_wakes_up(probe, sidecar):
    one = probe()
    one.do("lookup", 3, 1)
    until(lambda: status(sidecar)["asleep"], "the threads sleep")
    assert one.do("lookup", 30, 2)["own"] == 0


def test_idle_costs_nothing(probe, sidecar):
    """CPU time of the threads, not of the clock: it can not be slow."""
    one = probe()
    one.do("repeat", 10, 10, 1)
    time.sleep(1)  # one of them may have slept through the batches
    until(lambda: status(sidecar)["asleep"], "the threads sleep")
    before = status(sidecar)["cpu_seconds"]
    time.sleep(1)
    assert status(sidecar)["cpu_seconds"] - before < 0.05


# ---- engramd stops or dies ----

def test_stopped_in_mid_batch(probe, sidecar):
    one = probe(timeout_ms=300)
    one.do("lookup", 20, 1)
    sidecar.pause()
    try:
        one.do("post", 20, 2)
        got = one.do("take")
        assert got["own"] == 20 * 24 and got["timeouts"] == 1
        # the slots that were given up are not posted to again
        got = one.do("repeat", 20, 20, 3)
        assert got["timeouts"] <= 2 and got["stalled"] == 1
    finally:
        sidecar.resume()
    until(lambda: one.do("lookup", 1, 4)["stalled"] == 0, "caught up")
    before = one.do("lookup", 20, 5)
    after = one.do("lookup", 20, 6)
    assert after["own"] == before["own"]


def test_killed_in_mid_batch(probe, sidecar):
    one = probe(timeout_ms=300)
    sidecar.pause()
    one.do("post", 30, 1)
    sidecar.kill()
    got = one.do("take")
    assert got["own"] == 30 * 24
    assert one.do("repeat", 50, 30, 2)["timeouts"] <= 2
    one.end()
    sidecar.start()


def test_unloaded_under_a_ring(probe, sidecar):
    """The lease ends with its connection alone; an unload waits for it."""
    one = probe()
    client = sidecar.client()
    job = client.call("unload", table="demo")["job"]
    assert one.do("lookup", 20, 1)["own"] == 0
    one.end()
    assert client.finish(job)["state"] == "done"


# ---- clients die and lie ----

def test_client_killed(probe, sidecar):
    for i in range(5):
        one = probe()
        one.send("repeat", 100000, 50, i)
        time.sleep(0.05)
        one.kill()
    until(lambda: status(sidecar)["rings"] == 0, "the rings are gone")
    client = sidecar.client()
    until(lambda: client.table("demo")["leases"] == 0, "the leases end")
    job = client.call("unload", table="demo")["job"]
    assert client.finish(job)["state"] == "done"


@pytest.mark.parametrize("what", ["post", "flags", "finished", "header"])
@pytest.mark.parametrize("value", [0, 1, 255, 127])
def test_scribbled_ring(probe, sidecar, what, value):
    """Whoever spoils its ring gets its rows all the same, and others too."""
    liar, honest = probe(timeout_ms=200), probe()
    liar.do("lookup", 5, 1)
    liar.do("scribble", what, value)
    liar.do("repeat", 5, 20, 2)
    assert honest.do("repeat", 20, 20, 3)["own"] == 0
    liar.do("post", 20, 9)
    liar.do("scribble", what, value)
    honest.do("lookup", 20, 1)
    liar.kill()
    assert honest.do("lookup", 20, 2)["own"] == 0


# ---- the protocol ----

def memfd(size, seals=7):
    fd = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, F_ADD_SEALS, seals)
    return fd


def ring_file(slots=1, max_rows=64, row_bytes=66):
    def pages(n):
        return (n + 4095) // 4096 * 4096

    stride = (row_bytes + 7) // 8 * 8
    size = 4096 + pages(slots * 258 * 64) + slots * (
        pages(8 * max_rows) + pages((max_rows + 7) * stride))
    fd = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    header = b"EGRMRNG1" + b"".join(
        n.to_bytes(4, "little") for n in (2, slots, max_rows, row_bytes))
    os.write(fd, header)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, F_ADD_SEALS, 7)
    return fd


def open_ring(client, fd, **params):
    ident = next(client.ids)
    line = json.dumps({"jsonrpc": "2.0", "id": ident, "method": "gather.open",
                       "params": params}).encode() + b"\n"
    client.sock.sendmsg([line], [(socket.SOL_SOCKET, socket.SCM_RIGHTS,
                                  array.array("i", [fd]))])
    return client.answer(ident)


def refused(call, *args, **params):
    with pytest.raises(RpcError) as caught:
        call(*args, **params)
    return caught.value


def attach(client):
    lease = client.call("attach", table="demo")["lease"]
    client.close_fds()
    return lease


def test_open_and_close(sidecar):
    client = sidecar.client()
    fds = sidecar.fd_count()
    lease = attach(client)
    fd = ring_file()
    ring = open_ring(client, fd, lease=lease)["ring"]
    assert client.call("gather.bind", ring=ring, lease=lease) == {}
    second = attach(client)
    assert client.call("gather.bind", ring=ring, lease=second) == {}
    assert client.call("gather.close", ring=ring) == {}
    error = refused(client.call, "gather.close", ring=ring)
    assert error.name == "NotFound" and error.data["path"] == "ring"
    # the same memory again, as after a restart
    open_ring(client, fd, lease=second)
    client.call("detach", lease=second)
    client.call("detach", lease=lease)
    os.close(fd)
    assert client.call("gather.wake") == {}
    assert sidecar.fd_count() == fds
    client.close()
    until(lambda: status(sidecar)["rings"] == 0, "the ring is gone")


def test_open_refuses(sidecar):
    client = sidecar.client()
    lease = attach(client)
    error = refused(client.call, "gather.open", lease=lease)
    assert error.name == "InvalidArgument"
    assert "no descriptor came" in error.message
    for fd, word in ((memfd(4096, seals=0), "fixed size"),
                     (memfd(4096), "no header"),
                     (os.open("/dev/null", os.O_RDWR), "fixed size"),
                     (ring_file(row_bytes=67), "rows of 67 bytes")):
        error = refused(open_ring, client, fd, lease=lease)
        assert word in error.message, error.message
        os.close(fd)
    fd = ring_file()
    assert refused(open_ring, client, fd, lease=999).name == "NotFound"
    rings = [open_ring(client, fd, lease=lease)["ring"] for _ in range(16)]
    error = refused(open_ring, client, fd, lease=lease)
    assert error.name == "Busy" and "16 rings" in error.message
    others = [sidecar.client() for _ in range(3)]
    for other in others:
        own = attach(other)
        for _ in range(16):
            open_ring(other, fd, lease=own)
    other = sidecar.client()
    error = refused(open_ring, other, fd, lease=attach(other))
    assert error.name == "Busy" and "64 rings" in error.message
    for ring in rings:
        client.call("gather.close", ring=ring)
    os.close(fd)


def test_bindings_are_few(sidecar):
    client = sidecar.client()
    fd = ring_file()
    leases = [attach(client) for _ in range(5)]
    ring = open_ring(client, fd, lease=leases[0])["ring"]
    os.close(fd)
    for lease in leases[1:4]:
        client.call("gather.bind", ring=ring, lease=lease)
    error = refused(client.call, "gather.bind", ring=ring, lease=leases[4])
    assert error.name == "Busy" and error.data["fix"]
    client.call("detach", lease=leases[1])
    client.call("gather.bind", ring=ring, lease=leases[4])


def test_too_large(make, checkpoint):
    server = make([{"name": "demo", "checkpoint": str(checkpoint)}],
                  gather={"threads": 1, "ring_bytes": "1MiB"})
    client = server.client()
    until(lambda: client.table("demo")["state"] == "ready", "ready")
    fd = ring_file(max_rows=65536)
    error = refused(open_ring, client, fd, lease=attach(client))
    os.close(fd)
    assert error.name == "NoSpace"
    assert error.data["available"] == 1 << 20 < error.data["needed"]


def test_off(make, checkpoint):
    server = make([{"name": "demo", "checkpoint": str(checkpoint)}],
                  gather={"enabled": False})
    client = server.client()
    until(lambda: client.table("demo")["state"] == "ready", "ready")
    fd = ring_file()
    error = refused(open_ring, client, fd, lease=attach(client))
    os.close(fd)
    assert error.name == "Unsupported" and "gather.enabled" in \
        error.data["fix"]
    assert status(server) is None


def test_strange_descriptors(sidecar):
    """Nobody keeps what comes with a line that wants none."""
    client = sidecar.client()
    fds = sidecar.fd_count()
    for _ in range(50):
        ident = next(client.ids)
        line = json.dumps({"jsonrpc": "2.0", "id": ident,
                           "method": "ping"}).encode() + b"\n"
        with open("/dev/null", "rb") as null:
            client.sock.sendmsg(
                [line], [(socket.SOL_SOCKET, socket.SCM_RIGHTS,
                          array.array("i", [null.fileno()] * 9))])
        assert client.answer(ident) == {}
    assert sidecar.fd_count() <= fds + 1
    client.close()


@pytest.mark.parametrize("pinned", [True, False])
def test_cores(make, pinned):
    gather = {"threads": 2}
    if pinned:
        gather["cores"] = [min(os.sched_getaffinity(0))]
    server = make(gather=gather)
    names = {}
    for thread in server.threads():
        path = f"/proc/{server.process.pid}/task/{thread}"
        with open(f"{path}/comm", encoding="ascii") as comm:
            names[comm.read().strip()] = int(thread)
    allowed = os.sched_getaffinity(names["gather/1"])
    assert allowed == (set(gather["cores"]) if pinned
                       else os.sched_getaffinity(0))


def test_shows_what_clients_say(sidecar):
    """Whatever it is: the bytes are theirs."""
    client = sidecar.client()
    fd = ring_file()
    number = open_ring(client, fd, lease=attach(client))["ring"]
    with mmap.mmap(fd, 0) as ring:
        measured = [(384, 1, 1000, 20000, 50000, 60000),
                    (768, 3, 250, 40000, 60000, 35000),
                    (1536, 3, 200, 80000, 90000, 60000),
                    (3072, 2, 0, 160000, 90000, 0)]
        struct.pack_into("<2Q", ring, COUNTS, 2**64 - 1, 5)
        for i, choice in enumerate(measured):
            struct.pack_into("<6I", ring, CHOICES + 24 * i, *choice)
        told = status(sidecar)
        assert (told["fallback"], told["failed"]) == (2**63 - 1, 5)
        one, = told["measured"]
        assert (one["ring"], one["pid"]) == (number, os.getpid())
        assert [c["path"] for c in one["choices"]] == \
            ["uva", "hybrid", "hybrid", "host"]
        assert one["choices"][1] == {
            "rows": 768, "path": "hybrid", "own": 0.25, "uva_us": 40,
            "host_us": 60, "hybrid_us": 35}
        assert one["choices"][3]["hybrid_us"] is None
        shown = subprocess.run(
            [BUILD / "bin" / "engramctl", "--socket", sidecar.socket,
             "status"], capture_output=True, text=True, check=True,
            timeout=DEADLINE).stdout.splitlines()
        assert f"auto         pid {os.getpid()}: uva, hybrid from 768 rows," \
            " host from 3072 rows" in shown
        assert any(line.startswith("not gathered ") for line in shown)
        for i in range(16):
            struct.pack_into("<6I", ring, CHOICES + 24 * i, *6 * [2**32 - 1])
        one, = status(sidecar)["measured"]
        assert [c["path"] for c in one["choices"]] == 16 * ["?"]
