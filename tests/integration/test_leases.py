# SPDX-License-Identifier: Apache-2.0
"""A lease ends with its client, however that ends, and nothing else does; a
client that is slow or stopped keeps nobody waiting."""
import os
import pathlib
import signal
import socket
import subprocess
import sys

import pytest

import engramd
from engramd import until

HOLDER = pathlib.Path(__file__).with_name("lease_holder.py")


class Holder:
    """A process with leases, see lease_holder.py."""

    def __init__(self, path, *tables):
        self.process = subprocess.Popen(
            [sys.executable, HOLDER, str(path), *tables],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.read() == "ready"
        self.pid = self.process.pid

    def read(self):
        return self.process.stdout.readline().strip()

    def tell(self, word):
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()

    def ask(self, word):
        self.tell(word)
        return self.read()

    def pause(self):
        self.process.send_signal(signal.SIGSTOP)
        until(lambda: engramd.stopped(self.process), "it has stopped")

    def kill(self):
        self.process.kill()
        self.process.wait(engramd.DEADLINE)


@pytest.fixture
def library():
    """Where to find a client that uses it, for Holder."""
    data = (engramd.BUILD / "lib" / "libengram.so").read_bytes()
    if b"__asan_init" in data or b"__tsan_init" in data:
        pytest.skip("a sanitizer's build of libengram can not be loaded by "
                    "Python")
    return "lib:"


@pytest.fixture
def sidecar(make, checkpoint):
    return make([{"name": name, "checkpoint": str(checkpoint)}
                 for name in ("demo", "other")])


@pytest.fixture
def client(sidecar):
    """Has a lease of each table, which nobody else ends."""
    client = sidecar.client()
    for table in "demo", "other":
        client.have(table)
        client.call("attach", table=table)
    client.close_fds()
    return client


@pytest.fixture
def hold(sidecar):
    made = []

    def start(*tables, by=""):
        made.append(Holder(f"{by}{sidecar.socket}", *tables))
        return made[-1]

    yield start
    for holder in made:
        holder.kill()


def leases(client):
    return {name: client.table(name)["leases"] for name in ("demo", "other")}


def shown(client, pid):
    """What `clients` says of a process: its connections."""
    return [c for c in client.call("clients")["clients"] if c["pid"] == pid]


def let_go(client, pid):
    until(lambda: not shown(client, pid), "the connection is gone")
    assert leases(client) == {"demo": 1, "other": 1}
    own, = shown(client, os.getpid())
    assert [lease["table"] for lease in own["leases"]] == ["other", "demo"]


# Does the process live on?
WAYS = {"exit": False, "crash": False, "kill": False, "close": True,
        "half": True, "both": True, "exec": True}


@pytest.mark.parametrize("way", WAYS)
def test_ends(sidecar, client, hold, way):
    """Exactly what it held, and no descriptor stays."""
    descriptors = sidecar.fd_count()
    victim = hold("demo", "other", "demo")
    assert leases(client) == {"demo": 3, "other": 2}
    connection, = shown(client, victim.pid)
    assert [lease["table"] for lease in connection["leases"]] == [
        "demo", "other", "demo"]
    if way == "kill":
        victim.kill()
    else:
        victim.tell(way)
    let_go(client, victim.pid)
    assert sidecar.fd_count() == descriptors
    if not WAYS[way]:
        victim.process.wait(engramd.DEADLINE)
    assert (victim.process.poll() is None) == WAYS[way]


def test_forked(client, hold):
    """The child has the connection as well: it ends with the last of the
    two."""
    victim = hold("demo")
    child = int(victim.ask("fork"))
    victim.kill()
    try:
        assert leases(client)["demo"] == 2
        assert len(shown(client, victim.pid)) == 1  # as it connected
    finally:
        os.kill(child, signal.SIGKILL)
    let_go(client, victim.pid)


def test_forked_with_the_library(client, hold, library):
    """libengram's connection is not inherited: the child holds nothing."""
    victim = hold("demo", by=library)
    assert leases(client)["demo"] == 2
    child = int(victim.ask("fork"))
    try:
        victim.kill()
        let_go(client, victim.pid)
        os.kill(child, 0)  # it lives
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("way", ["exec", "crash"])
def test_ends_with_the_library(client, hold, library, way):
    victim = hold("demo", by=library)
    victim.tell(way)
    let_go(client, victim.pid)


def test_shown(client, hold):
    """Who holds what, since when."""
    victim = hold("demo")
    connection, = shown(client, victim.pid)
    assert (connection["uid"], connection["gid"]) == (os.getuid(), os.getgid())
    lease, = connection["leases"]
    assert (lease["table"], lease["generation"], lease["layers"],
            lease["writable"]) == ("demo", 1, [1, 14], False)
    assert 0 <= lease["age_seconds"] <= connection["age_seconds"]
    assert connection["rings"] == []
    job = client.call("reload", table="demo", force=True)["job"]
    assert client.finish(job)["state"] == "done"
    lease, = shown(client, victim.pid)[0]["leases"]
    assert lease["generation"] == 1


# ---- slow and stopped ----

def others_go_on(sidecar, client):
    """Everything that is not the victim's."""
    with sidecar.connection() as other:
        other.greet()
        assert other.call("ping") == {}
        lease = other.call("attach", table="demo")["lease"]
        other.close_fds()
        other.call("detach", lease=lease)
    for table in "demo", "other":
        job = client.finish(client.call("verify", table=table)["job"])
        assert job["state"] == "done"


def generations(client):
    return {g["generation"] for g in client.table("demo")["generations"]}


def stopped_idle(victim):
    victim.pause()


def stopped_full(victim):
    """With answers that it does not read, and requests that nobody reads."""
    assert victim.ask("ask") == "full"
    victim.pause()


def stopped_subscriber(victim):
    assert victim.ask("subscribe") == "subscribed"
    victim.pause()


@pytest.mark.parametrize("stop", [stopped_idle, stopped_full,
                                  stopped_subscriber])
def test_stopped(sidecar, client, hold, stop):
    """It has what it held, and no more than that; reloads go on."""
    victim = hold("demo")
    stop(victim)
    others_go_on(sidecar, client)
    own, = shown(client, os.getpid())
    for lease in own["leases"]:
        client.call("detach", lease=lease["lease"])
    for generation in 2, 3:
        job = client.finish(client.call("reload", table="demo",
                                        force=True)["job"])
        assert job["state"] == "done"
        until(lambda n=generation: generations(client) == {1, n},
              "what nobody has is freed")
    others_go_on(sidecar, client)
    lease, = shown(client, victim.pid)[0]["leases"]
    assert lease["generation"] == 1
    # stopped or not
    victim.kill()
    until(lambda: generations(client) == {3}, "it lets go")
    assert leases(client) == {"demo": 0, "other": 0}


def test_unload_waits_for_a_stopped_one_alone(sidecar, client, hold):
    """As it may go on and read.  Other tables, and the loop, do not wait."""
    victim = hold("demo")
    victim.pause()
    own, = shown(client, os.getpid())
    for lease in own["leases"]:
        client.call("detach", lease=lease["lease"])
    job = client.call("unload", table="demo")["job"]
    done = client.finish(client.call("unload", table="other")["job"])
    assert done["state"] == "done"
    client.load("other")
    sidecar.ping()
    assert client.table("demo")["state"] == "draining"
    assert client.call("job.get", job=job)["phase"] == "waiting"
    victim.kill()
    assert client.finish(job)["state"] == "done"


def test_half_closed_and_not_read(client, hold):
    """Nothing more can come from it, and its answers wait some seconds, not
    for ever."""
    victim = hold("demo")
    victim.tell("some")
    victim.tell("half")
    let_go(client, victim.pid)
    assert victim.process.poll() is None


def test_full_and_half_closed(sidecar, client, hold):
    """The same of one that has asked for more than engramd answers before it
    has read some."""
    victim = hold("demo")
    assert victim.ask("ask") == "full"
    victim.tell("half")
    others_go_on(sidecar, client)
    let_go(client, victim.pid)
    assert victim.process.poll() is None


def test_half_closed_and_read(sidecar):
    """All that was asked before is answered, however much it is."""
    with sidecar.connection() as slow:
        slow.greet()
        count, sent = 2000, 0
        line = b'{"jsonrpc":"2.0","id":1,"method":"rpc.discover"}\n'
        slow.sock.setblocking(False)
        rest, answers = memoryview(line * count), 0
        while sent < len(rest):
            try:
                sent += slow.sock.send(rest[sent:])
            except BlockingIOError:
                slow.sock.settimeout(engramd.DEADLINE)
                assert slow.read()["id"] == 1
                answers += 1
                slow.sock.setblocking(False)
        slow.sock.settimeout(engramd.DEADLINE)
        slow.sock.shutdown(socket.SHUT_WR)
        while slow.read() is not None:
            answers += 1
        assert answers == count


def test_many_end_at_once(sidecar, client, hold):
    """Among others that stay."""
    descriptors = sidecar.fd_count()
    holders = [hold("demo", "other") for _ in range(8)]
    assert leases(client) == {"demo": 9, "other": 9}
    for victim in holders[::2]:
        victim.process.send_signal(signal.SIGSTOP)
    for victim in holders:
        victim.process.kill()
    for victim in holders:
        assert victim.process.wait(engramd.DEADLINE) == -signal.SIGKILL
    until(lambda: leases(client) == {"demo": 1, "other": 1}, "all let go")
    until(lambda: sidecar.fd_count() == descriptors, "no descriptor is left")
