# SPDX-License-Identifier: Apache-2.0
"""engramd, and its clients, die, stop or fail at every point of
shm/failpoint.h.

Each sidecar here takes over a table, "steady", that a killed one has left and
that a client reads all the time, then loads "demo", lends it, unloads it and
stops: this passes every point.
"""
import collections
import contextlib
import errno
import os
import re
import signal
import subprocess
import threading

import pytest

import engramd
import row_reader

BUILD = engramd.BUILD / "failpoint"
POINTS = [line.split() for line in subprocess.run(
    [BUILD / "list"], check=True, capture_output=True,
    text=True).stdout.splitlines()]
# test_in_place.py has those of overwriting, test_copies.py those of copying.
SIDECAR = [name for name, who in POINTS if who == "sidecar" and
           not name.startswith(("place", "park", "copy"))]
CLIENT = [name for name, who in POINTS if who == "client"]
# Two tables are planned; the second is the one that is built.
SECOND = {"load_planned"}

Held = collections.namedtuple("Held", "descriptors locked names")


def held(sidecar):
    """What a sidecar that has nothing but "steady" holds."""
    # the sanitizers keep mlock, but not mlock2, from the kernel
    sanitized = engramd.BUILD.name in ("asan", "tsan")
    return Held(sidecar.fd_count(),
                0 if sanitized else sidecar.locked_bytes(),
                len(sidecar.names()))


def steady(client):
    """Wait until it is lent, and looked after."""
    engramd.until(lambda: client.table("steady")["state"] == "ready" and
                  client.table("steady")["job"] is None, "steady is ready")


@pytest.fixture
def tables(make, seeded):
    return make([{"name": "steady", "checkpoint": str(seeded[0])},
                 {"name": "demo", "checkpoint": str(seeded[1]),
                  "load": "on_demand"}])


@pytest.fixture
def reader(tables, known):
    """Of "steady"; the sidecar is killed meanwhile."""
    steady(tables.client())
    reader = row_reader.RowReader(tables, "steady", known)
    reader.goes_on()
    tables.kill()
    yield reader
    reader.end()


def with_point(sidecar, point, action):
    sidecar.start(wait=False, binary=BUILD / "engramd",
                  ENGRAM_FAILPOINT=f"{point}={action}")


def again(sidecar):
    """Readers connect as soon as it listens: it is not alone for long."""
    sidecar.start(wait=False)
    engramd.until(sidecar.answers, "the sidecar answers")


def life(sidecar):
    """All that a sidecar does."""
    engramd.until(sidecar.answers, "the sidecar answers")
    with sidecar.connection() as client:
        client.greet()
        steady(client)
        client.load("demo")
        lease = client.call("attach", table="demo")["lease"]
        client.finish(client.call("reload", table="demo", force=True)["job"])
        client.call("detach", lease=lease)
        engramd.until(lambda: len(client.table("demo")["generations"]) == 1,
                      "the superseded generation is freed")
        client.finish(client.call("unload", table="demo")["job"])
        client.call("shutdown")
    assert sidecar.wait() == 0


class Life(threading.Thread):
    """life(), and how it ended: None, or what was raised."""

    def __init__(self, sidecar):
        super().__init__(daemon=True)
        self.sidecar, self.error = sidecar, None
        self.start()

    def run(self):
        try:
            life(self.sidecar)
        except (AssertionError, OSError) as error:
            self.error = error


def serves_again(sidecar, known):
    """As one that never met a fault: rows, and nothing held too much."""
    client = sidecar.client()
    steady(client)
    client.have("demo")
    demo = row_reader.RowReader(sidecar, "demo", known)
    demo.goes_on()
    demo.end()
    engramd.until(lambda: client.table("demo")["leases"] == 0,
                  "the lease ends")
    client.finish(client.call("unload", table="demo")["job"])
    sidecar.hang_up()
    engramd.until(lambda: sidecar.connections() == 1,
                  "the reader alone is connected")


@pytest.fixture(scope="session")
def usual(seeded, known, tmp_path_factory):
    """What is held after a life without faults, with one reader."""
    sidecar = engramd.Sidecar(
        tmp_path_factory.mktemp("usual"),
        [{"name": "steady", "checkpoint": str(seeded[0])},
         {"name": "demo", "checkpoint": str(seeded[1]),
          "load": "on_demand"}])
    reader = row_reader.RowReader(sidecar, "steady", known)
    reader.goes_on()
    serves_again(sidecar, known)
    usual = held(sidecar)
    reader.end()
    sidecar.stop()
    return usual


def killed_at(tables, reader, known, point):
    """Somewhere in its life; the next one comes up, and serves both tables.
    Who has attached notices nothing."""
    with_point(tables, point, "kill")
    scenario = Life(tables)
    engramd.until(lambda: tables.process.poll() is not None, f"{point} kills")
    assert tables.process.returncode == -signal.SIGKILL, tables.log()
    scenario.join(engramd.DEADLINE)
    reader.goes_on()
    attached = reader.attaches
    again(tables)
    reader.attached(attached + 1)
    serves_again(tables, known)


@pytest.mark.parametrize("point", SIDECAR)
def test_killed(tables, reader, known, usual, point):
    """The next one holds no more than usual."""
    killed_at(tables, reader, known, point)
    assert held(tables) == usual


def moves_on(sidecar, reader, checkpoint):
    """After a death in a reload: the next one comes up, the reader leases what
    it has, goes on, and has the new rows once they are there."""
    attached = reader.attaches
    again(sidecar)
    reader.attached(attached + 1)
    client = sidecar.client()
    client.have("demo")
    reader.goes_on()
    job = client.finish(client.call("reload", table="demo",
                                    checkpoint=str(checkpoint))["job"])
    assert job["state"] == "done", job
    engramd.until(lambda: reader.generation == job["generation"],
                  "the reader moves on")
    reader.goes_on()
    assert reader.seeds == 0b11 and reader.refreshes > 0
    engramd.until(lambda: len(sidecar.segments()) == 2,
                  "one generation is left")
    reader.end()


CONTROL_TABLES = 64  # which a new owner withdraws, each by itself

# Once the table that is there has been taken over and published.
RELOADING = ("load_described:2", "load_opened:2", "load_planned:2",
             "load_admitted", "segment_named", "segment_created", "load_block",
             "load_filled", "load_checked", "load_locked", "segment_ready",
             "segment_linked", "segment_published", "publish_identified",
             "publish_begin:2", f"publish_midway:{CONTROL_TABLES + 2}",
             "publish_shown:2", "old_free_begin", "old_free_done")

# What is published stays so.
RELOADING_CANCELED = [
    point for point in RELOADING
    if not point.startswith(("publish_begin", "publish_midway",
                             "publish_shown", "old_"))]


@pytest.mark.parametrize("point", RELOADING)
def test_killed_in_a_reload(make, seeded, known, point):
    """Its reader, which refreshes, has right rows all the time, and moves on
    with the next one."""
    sidecar = make([{"name": "demo", "checkpoint": str(seeded[0])}])
    sidecar.client().have("demo")
    reader = row_reader.RowReader(sidecar, "demo", known)
    reader.goes_on()
    sidecar.kill()
    with_point(sidecar, point, "kill")
    engramd.until(sidecar.answers, "the sidecar answers")
    reader.attached(2)
    client = sidecar.client()
    client.have("demo")
    client.request("reload", table="demo", checkpoint=str(seeded[1]))
    assert sidecar.wait() == -signal.SIGKILL
    sidecar.hang_up()
    reader.goes_on()
    moves_on(sidecar, reader, seeded[1])


@pytest.mark.parametrize("point", SIDECAR)
def test_stopped(tables, reader, point):
    """Who has attached reads on meanwhile; continued, it is as if nothing
    had been."""
    with_point(tables, point, "stop")
    scenario = Life(tables)
    engramd.until(lambda: engramd.stopped(tables.process), f"{point} stops")
    reader.goes_on()
    tables.signal(signal.SIGCONT)
    scenario.join(engramd.DEADLINE)
    assert scenario.error is None, tables.log()
    assert tables.names() == []
    reader.goes_on()


def status_points():
    """Of a load, that can fail; each is in one place.  Those of adopting are
    in test_adopt_limits.py."""
    found = set()
    for folder in "shm", "sidecar", "clients/c":
        for path in (engramd.ROOT / folder).glob("*.c"):
            found |= set(re.findall(r"FAILPOINT_STATUS\((\w+)",
                                    path.read_text()))
    return sorted(point for point in found
                  if not point.startswith(("adopt", "copy")))


@pytest.mark.parametrize("point", status_points())
def test_failed(tables, reader, known, usual, point):
    """The job says so, the table is as before, and loads the next time."""
    nth = ":2" if point in SECOND else ""
    with_point(tables, point + nth, f"error:{errno.EIO}")
    engramd.until(tables.answers, "the sidecar answers")
    client = tables.client()
    steady(client)
    job = client.finish(client.call("load", table="demo")["job"])
    assert job["state"] == "failed"
    assert job["error"]["data"]["errno"] == errno.EIO
    assert f"failpoint {point}" in job["error"]["message"]
    assert len(tables.segments()) == 2
    assert client.table("demo")["state"] == "failed"
    reader.attached(2)
    serves_again(tables, known)
    assert held(tables) == usual


@contextlib.contextmanager
def waits_at(fifo):
    """Until a thread is at the point that holds it; it goes on after."""
    with open(os.open(fifo, os.O_RDONLY | os.O_NONBLOCK), "rb",
              buffering=0) as pipe:
        # Nothing: nobody writes; None: who does has written nothing yet.
        engramd.until(lambda: pipe.read(1), "the point is passed")
        yield


# Of a load, in its thread; with nothing to adopt, and with a generation that
# is.
LOADING = ("load_described", "load_opened", "load_planned", "adopt_listed",
           "adopt_cleaned", "load_admitted", "segment_named",
           "segment_created", "load_block", "load_filled", "load_checked",
           "load_locked", "segment_ready", "segment_linked",
           "segment_published", "publish_identified")
ADOPTING = ("load_described", "load_opened", "load_planned", "adopt_listed",
            "adopt_mapped", "adopt_taken", "adopt_cleaned")


def cancel_at(client, fifo, job):
    """At the point, of which there is one."""
    with waits_at(fifo):
        assert client.call("job.cancel", job=job)["state"] == "running"
    assert client.finish(job)["state"] == "canceled"


def alike(sidecar, before):
    """No name, no locked memory, and no descriptor once threads are gone."""
    assert sidecar.names() == before[0]
    engramd.until(lambda: (sidecar.locked_bytes(), sidecar.fd_count()) ==
                  before[1:], "memory and descriptors return")


def present(sidecar):
    engramd.until(lambda: sidecar.connections() == 1, "we are alone")
    return sidecar.names(), sidecar.locked_bytes(), sidecar.fd_count()


@pytest.fixture
def fifo(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    return tmp_path / "fifo"


@pytest.mark.parametrize("point", LOADING)
def test_load_canceled(make, seeded, fifo, point):
    """Wherever it is: nothing of it is left, and it loads the next time."""
    sidecar = make([{"name": "demo", "checkpoint": str(seeded[0]),
                     "load": "on_demand"}], start=False)
    with_point(sidecar, point, f"hold:{fifo}")
    engramd.until(sidecar.answers, "the sidecar answers")
    client = sidecar.client()
    before = present(sidecar)
    cancel_at(client, fifo, client.call("load", table="demo")["job"])
    table = client.table("demo")
    assert (table["state"], table["error"]) == ("absent", None)
    alike(sidecar, before)
    assert client.have("demo")["state"] == "ready"


@pytest.mark.parametrize("point", RELOADING_CANCELED)
def test_reload_canceled(make, seeded, fifo, point):
    """What is lent stays as it is."""
    sidecar = make([{"name": "demo", "checkpoint": str(seeded[0])}])
    sidecar.client().have("demo")
    sidecar.kill()
    with_point(sidecar, point, f"hold:{fifo}")
    engramd.until(sidecar.answers, "the sidecar answers")
    client = sidecar.client()
    was = client.have("demo")
    engramd.until(lambda: client.table("demo")["job"] is None, "it is adopted")
    before = present(sidecar)
    cancel_at(client, fifo, client.call(
        "reload", table="demo", checkpoint=str(seeded[1]))["job"])
    table = client.table("demo")
    assert (table["state"], table["error"]) == ("ready", None)
    assert table["content_id"] == was["content_id"]
    alike(sidecar, before)
    job = client.finish(client.call("reload", table="demo",
                                    checkpoint=str(seeded[1]))["job"])
    assert job["state"] == "done"


@pytest.mark.parametrize("mode", ["verify", "trust"])
@pytest.mark.parametrize("point", ADOPTING)
def test_adopting_canceled(make, seeded, fifo, point, mode):
    """What a former engramd has left is still there for another try."""
    sidecar = make([{"name": "demo", "checkpoint": str(seeded[0])}],
                   memory={"adopt": mode})
    content = sidecar.client().have("demo")["content_id"]
    segments = sidecar.segments()
    sidecar.kill()
    with_point(sidecar, point, f"hold:{fifo}")
    engramd.until(sidecar.answers, "the sidecar answers")
    client = sidecar.client()
    cancel_at(client, fifo, client.table("demo")["job"])
    assert client.table("demo")["state"] == "absent"
    assert sidecar.segments() == segments and sidecar.locked_bytes() == 0
    table = client.have("demo")
    assert table["adopted"] and table["content_id"] == content


@pytest.mark.parametrize("point", ["load_admitted", "load_locked",
                                   "segment_ready", "free_begin"])
def test_the_loop_goes_on(tables, reader, point):
    """Nothing of a job's work blocks it: pings are answered before the point
    is left."""
    with_point(tables, point, "sleep:3000")
    engramd.until(tables.answers, "the sidecar answers")
    client = tables.client()
    steady(client)
    job = client.call("load", table="demo")["job"]
    if point.startswith("free"):
        client.finish(job)
        job = client.call("unload", table="demo")["job"]
    for _ in range(3):
        tables.ping()
    assert client.call("job.get", job=job)["state"] == "running"
    client.finish(job)
    reader.goes_on()


def test_link_to_a_checkpoint_is_moved(make, seeded, known, tmp_path):
    """While it is read: all of one of the two, not the configuration of one
    and the rows of the other."""
    link = tmp_path / "model"
    link.symlink_to(seeded[0])
    sidecar = make([{"name": "demo", "checkpoint": str(link)}], start=False)
    with_point(sidecar, "load_described", "stop")
    engramd.until(lambda: engramd.stopped(sidecar.process), "it stops")
    (tmp_path / "new").symlink_to(seeded[1])
    os.replace(tmp_path / "new", link)
    sidecar.signal(signal.SIGCONT)
    engramd.until(sidecar.answers, "the sidecar answers")
    assert sidecar.client().have("demo")["content_id"] == known[0]


def client_with(tables, known, point, action):
    return row_reader.RowReader(tables, "demo", known,
                                binary=BUILD / "row_reader",
                                ENGRAM_FAILPOINT=f"{point}={action}")


@pytest.fixture
def lending(tables, reader):  # pylint: disable=unused-argument
    """Both tables are there; a connection."""
    again(tables)
    client = tables.client()
    steady(client)
    client.have("demo")
    return client


def provoke(client, victim, point):
    """Have it come to a point that it does not pass by attaching."""
    if "detache" in point:
        victim.goes_on()
        victim.map[0] = 1
    elif point in ("client_prepared", "client_moved"):
        victim.goes_on()
        client.finish(client.call("reload", table="demo", force=True)["job"])


def no_leases(client):
    engramd.until(lambda: client.table("demo")["leases"] == 0,
                  "its lease ends")


@pytest.mark.parametrize("point", CLIENT)
def test_client_killed(tables, reader, known, lending, usual, point):
    victim = client_with(tables, known, point, "kill")
    provoke(lending, victim, point)
    assert victim.process.wait(engramd.DEADLINE) == -signal.SIGKILL
    no_leases(lending)
    reader.attached(2)
    serves_again(tables, known)
    assert held(tables) == usual


@pytest.mark.parametrize("point", CLIENT)
def test_client_stopped(tables, reader, known, lending, point):
    """Others come and go meanwhile, and it goes on; killed, its lease is
    gone."""
    for end in signal.SIGCONT, signal.SIGKILL:
        victim = client_with(tables, known, point, "stop")
        provoke(lending, victim, point)
        engramd.until(lambda: engramd.stopped(victim.process), "it stops")
        other = row_reader.RowReader(tables, "demo", known)
        other.goes_on()
        other.end()
        reader.goes_on()
        victim.process.send_signal(end)
        if end == signal.SIGCONT and "detache" not in point:
            victim.goes_on()
            victim.end()
        code = victim.process.wait(engramd.DEADLINE)
        assert code == (0 if end == signal.SIGCONT else -signal.SIGKILL)
        no_leases(lending)
    assert lending.call("ping") == {}


@pytest.mark.parametrize("value", [
    "x", "load_opened", "load_opened=", "load_opened=die", "no_such=kill",
    "load_opened:0=kill", "load_opened:x=kill", "load_opened=sleep",
    "load_opened=kill;load_planned=error:x"])
def test_not_understood(tables, value):
    """A test whose point is misspelt would test nothing."""
    tables.kill()
    tables.start(wait=False, binary=BUILD / "engramd", ENGRAM_FAILPOINT=value)
    assert tables.wait() == 44
    assert "is no point or action" in tables.log()
    again(tables)


def test_exit(tables):
    tables.kill()
    with_point(tables, "own_locked", "exit")
    assert tables.wait() == 43
    again(tables)


@pytest.mark.parametrize("file", [
    "bin/engramd", "bin/engramctl", "lib/libengram.so", "lib/libengram.a"])
def test_none_in_what_is_installed(file):
    data = (engramd.BUILD / file).read_bytes()
    assert b"ailpoint" not in data and b"ENGRAM_FAILPOINT" not in data
    assert b"ailpoint" in (BUILD / "engramd").read_bytes()


def test_every_point_is_passed_somewhere():
    """The list and the sources agree."""
    found = set()
    for folder in "shm", "sidecar", "clients/c":
        for path in (engramd.ROOT / folder).glob("*.c"):
            found |= set(re.findall(r"FAILPOINT(?:_STATUS)?\((\w+)",
                                    path.read_text()))
    assert found == {name for name, _ in POINTS}
    assert os.access(BUILD / "row_reader", os.X_OK)
