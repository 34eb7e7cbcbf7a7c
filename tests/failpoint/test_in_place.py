# SPDX-License-Identifier: Apache-2.0
"""reload.mode "in_place": the next generation is written into the memory that
clients have mapped, once nobody reads it."""
import errno
import signal
import struct
import time

import pytest

import engramd
import row_reader
from engramd import RpcError, until
from test_failpoints import moves_on, with_point

LONG = 900000  # seconds that no test waits for


def demo(seeded, **reload):
    return {"name": "demo", "checkpoint": str(seeded[0]),
            "reload": {"mode": "in_place", "settle_seconds": 0, **reload}}


def generation(sidecar):
    """As the control page shows it."""
    raw = (sidecar.home / f"engramd.{sidecar.instance}.ctl").read_bytes()
    return struct.unpack_from("<Q", raw, 248 + 64)[0]


def inodes(sidecar):
    return {(sidecar.home / name).stat().st_ino
            for name in sidecar.segments()}


def start_reload(client, checkpoint, **params):
    return client.call("reload", table="demo", checkpoint=str(checkpoint),
                       **params)["job"]


def readers_of(sidecar, known, count=2):
    readers = [row_reader.RowReader(sidecar, "demo", known)
               for _ in range(count)]
    for reader in readers:
        reader.goes_on()
    return readers


def refused(client, method, **params):
    with pytest.raises(RpcError) as caught:
        client.call(method, **params)
    return caught.value


def test_readers_park(make, seeded, known):
    """Back and forth, in the same memory; each step has rows of one
    generation."""
    sidecar = make([demo(seeded)])
    client = sidecar.client()
    client.have("demo")
    readers = readers_of(sidecar, known)
    where = inodes(sidecar)
    for at in (1, 0, 1):
        job = client.finish(start_reload(client, seeded[at]))
        assert job["state"] == "done", job
        assert client.table("demo")["content_id"] == known[at]
        until(lambda: all(r.generation == job["generation"]
                          for r in readers), "the readers move on")
        for reader in readers:
            reader.goes_on()
        assert inodes(sidecar) == where
        assert {name.rpartition(".")[2] for name in sidecar.segments()} == {
            f"g{job['generation']}"}
    for reader in readers:
        assert reader.seeds == 0b11 and reader.parks == 3
        reader.end()
    until(lambda: [g["generation"] for g in
                   client.table("demo")["generations"]] == [4],
          "the generations before are forgotten")
    client.finish(client.call("verify", table="demo")["job"])


def test_by_the_protocol(make, seeded, known):
    sidecar = make([demo(seeded), {"name": "other",
                                   "checkpoint": str(seeded[0])}])
    client, holder = sidecar.client(), sidecar.client()
    client.have("demo")
    client.have("other")
    lease = holder.call("attach", table="demo")["lease"]
    other = holder.call("attach", table="other")["lease"]
    error = refused(holder, "park", lease=other)
    assert error.name == "Unsupported" and error.data["fix"] == "detach"
    assert refused(holder, "park", lease=99).name == "NotFound"
    job = start_reload(client, seeded[1])
    until(lambda: generation(sidecar) == 0, "clients are told")
    assert refused(holder, "attach", table="demo").name == "Draining"
    assert holder.call("park", lease=lease) == {}
    assert client.finish(job)["state"] == "done"
    assert client.table("demo")["content_id"] == known[1]
    leases = [each for connection in client.call("clients")["clients"]
              for each in connection["leases"]]
    assert sorted((each["table"], each["parked"]) for each in leases) == [
        ("demo", True), ("other", False)]
    holder.call("park", lease=lease)  # once more is no fault
    holder.call("detach", lease=lease)
    until(lambda: len(client.table("demo")["generations"]) == 1,
          "what has parked is let go of")


def test_unload_is_not_parked_for(make, seeded, known):
    """Who has parked for a reload that was cancelled lets go."""
    sidecar = make([demo(seeded)])
    client, holder = sidecar.client(), sidecar.client()
    client.have("demo")
    reader = readers_of(sidecar, known, 1)[0]
    lease = holder.call("attach", table="demo")["lease"]
    job = start_reload(client, seeded[1])
    until(lambda: reader.parks == 1, "it parks")
    client.call("job.cancel", job=job)
    assert client.finish(job)["state"] == "canceled"
    assert generation(sidecar) == 1
    reader.goes_on()
    assert reader.refreshes == 1  # the same generation, leased anew
    job = client.call("unload", table="demo")["job"]
    error = refused(holder, "park", lease=lease)
    assert error.name == "Unsupported" and "unloaded" in error.message
    holder.call("detach", lease=lease)
    assert client.finish(job)["state"] == "done"
    reader.end()


def test_one_that_does_not_park(make, seeded, known):
    """Is named; those that have go on."""
    sidecar = make([demo(seeded, drain_seconds=1)])
    client, holder = sidecar.client(), sidecar.client()
    client.have("demo")
    reader = readers_of(sidecar, known, 1)[0]
    holder.call("client.name", name="an engine")
    lease = holder.call("attach", table="demo")["lease"]
    job = client.finish(start_reload(client, seeded[1]))
    assert job["state"] == "failed"
    assert job["error"]["data"]["name"] == "TimedOut"
    assert "(an engine)" in job["error"]["message"]
    assert "row_reader" not in job["error"]["message"]
    assert job["error"]["data"]["fix"].startswith("have them detach or park")
    assert client.table("demo")["generation"] == 1
    reader.goes_on()
    holder.call("detach", lease=lease)
    job = client.finish(start_reload(client, seeded[1]))
    assert job["state"] == "done"
    until(lambda: reader.generation == 2, "it moves on")
    reader.goes_on()
    reader.end()


def test_refused(make, seeded, known, tmp_path):
    """Before anybody is told to stop."""
    sidecar = make([demo(seeded)])
    client = sidecar.client()
    client.have("demo")
    reader = readers_of(sidecar, known, 1)[0]
    larger = engramd.synth(tmp_path / "larger", *engramd.BIG)
    job = client.finish(start_reload(client, larger))
    assert job["state"] == "failed"
    assert job["error"]["data"]["name"] == "GeometryMismatch"
    assert "can not be replaced in place" in job["error"]["message"]
    assert "drain_first" in job["error"]["data"]["fix"]
    assert refused(client, "reload", table="demo",
                   hold=True).data["path"] == "hold"
    assert client.finish(client.call(
        "reload", table="demo", checkpoint=str(seeded[0]))["job"])["unchanged"]
    reader.goes_on()
    assert reader.parks == 0
    reader.end()


def test_memfd(make, seeded):
    sidecar = make([demo(seeded)], memory={"backing": "memfd"})
    client = sidecar.client()
    client.have("demo")
    client.call("attach", table="demo")
    job = client.finish(start_reload(client, seeded[1]))
    assert job["error"]["data"]["name"] == "Unsupported"
    assert "sealed" in job["error"]["message"]
    assert client.table("demo")["state"] == "ready"


def waits(sidecar, client, job):
    """For longer than a tick, without a lease that it could wait for."""
    until(lambda: generation(sidecar) == 0, "clients are told")
    beats = [heartbeat(sidecar)]
    while len(beats) < 3:
        until(lambda: heartbeat(sidecar) != beats[-1], "a tick")
        beats.append(heartbeat(sidecar))
    assert client.call("job.get", job=job)["phase"] == "waiting"


def heartbeat(sidecar):
    raw = (sidecar.home / f"engramd.{sidecar.instance}.ctl").read_bytes()
    return struct.unpack_from("<Q", raw, 104)[0]


def test_connection_that_broke(make, seeded):
    """Who had leased by it may still read: it is given settle_seconds to see
    that it is to stop."""
    sidecar = make([demo(seeded, settle_seconds=LONG, drain_seconds=LONG + 1)])
    client, holder = sidecar.client(), sidecar.client()
    client.have("demo")
    lease = holder.call("attach", table="demo")["lease"]
    holder.call("detach", lease=lease)  # it has said so
    job = client.finish(start_reload(client, seeded[1]))
    assert job["state"] == "done"
    holder.call("attach", table="demo")
    sidecar.clients.remove(holder)
    holder.close()
    until(lambda: client.table("demo")["leases"] == 0, "it is gone")
    job = start_reload(client, seeded[0])
    waits(sidecar, client, job)
    client.call("job.cancel", job=job)
    assert client.finish(job)["state"] == "canceled"


def test_connection_that_breaks_late(make, seeded):
    """Also when it had been asked to stop for longer than that: it may have
    waited for an answer till then."""
    settle = 2
    sidecar = make([demo(seeded, settle_seconds=settle, drain_seconds=LONG)])
    client, holder = sidecar.client(), sidecar.client()
    client.have("demo")
    holder.call("attach", table="demo")
    job = start_reload(client, seeded[1])
    for _ in range(settle + 1):
        beat = heartbeat(sidecar)
        until(lambda was=beat: heartbeat(sidecar) != was, "a tick")
    assert client.call("job.get", job=job)["phase"] == "waiting"
    lost = time.monotonic()
    sidecar.clients.remove(holder)
    holder.close()
    assert client.finish(job)["state"] == "done"
    assert time.monotonic() - lost >= settle


def test_readers_of_a_former_engramd(make, seeded):
    """So are those who have not leased anew what was adopted."""
    sidecar = make([demo(seeded, settle_seconds=LONG, drain_seconds=LONG + 1)])
    sidecar.client().have("demo")
    sidecar.kill()
    sidecar.start()
    client = sidecar.client()
    client.have("demo")
    assert client.table("demo")["adopted"]
    job = start_reload(client, seeded[1])
    waits(sidecar, client, job)
    client.call("job.cancel", job=job)
    assert client.finish(job)["state"] == "canceled"


# Passed by the first load too.
@pytest.mark.parametrize("point", ["load_filled:2", "load_locked:2",
                                   "segment_published:3",
                                   "publish_identified:2"])
def test_failed_halfway(make, seeded, known, point):
    """There is nothing to go back to; readers wait for the next load."""
    sidecar = make([demo(seeded)], start=False)
    with_point(sidecar, point, f"error:{errno.EIO}")
    until(sidecar.answers, "the sidecar answers")
    client = sidecar.client()
    client.have("demo")
    reader = readers_of(sidecar, known, 1)[0]
    job = client.finish(start_reload(client, seeded[1]))
    assert job["state"] == "failed", job
    assert job["error"]["data"]["errno"] == errno.EIO
    table = client.table("demo")
    assert table["state"] == "failed" and table["error"]["message"]
    assert sidecar.segments() == []
    assert reader.parks == 1
    client.load("demo")
    until(lambda: reader.generation == client.table("demo")["generation"],
          "it moves on")
    reader.goes_on()
    reader.end()


# The table that is there has been adopted and published before.
POINTS = ["park_asked", "park_done", "place_unready", "place_blank",
          "place_blank:2", "place_taken", "place_taken:2", "load_block",
          "load_filled", "load_checked", "segment_ready", "segment_linked", "segment_published:2",
          "publish_identified", "publish_begin:2"]


@pytest.fixture
def adopted(make, seeded, known):
    """A sidecar that is to stop at a point, and a reader."""
    def factory(point, action):
        sidecar = make([demo(seeded)])
        sidecar.client().have("demo")
        reader = readers_of(sidecar, known, 1)[0]
        sidecar.kill()
        with_point(sidecar, point, action)
        until(sidecar.answers, "the sidecar answers")
        reader.attached(2)
        sidecar.client().have("demo")
        return sidecar, reader
    return factory


@pytest.mark.parametrize("point", POINTS)
def test_killed(adopted, seeded, point):
    """Nothing half written is ever lent: the next one loads, or adopts what was
    whole; nothing is left over."""
    sidecar, reader = adopted(point, "kill")
    sidecar.client().request("reload", table="demo",
                             checkpoint=str(seeded[1]))
    assert sidecar.wait() == -signal.SIGKILL
    sidecar.hang_up()
    reader.check()
    moves_on(sidecar, reader, seeded[1])


@pytest.mark.parametrize("point", POINTS)
def test_stopped(adopted, seeded, point):
    """Continued, it is as if nothing had been."""
    sidecar, reader = adopted(point, "stop")
    job = sidecar.client().request("reload", table="demo",
                                   checkpoint=str(seeded[1]))
    until(lambda: engramd.stopped(sidecar.process), f"{point} stops")
    sidecar.signal(signal.SIGCONT)
    until(lambda: reader.generation == 2, "it moves on")
    assert job
    reader.goes_on()
    assert reader.seeds == 0b11 and reader.parks == 1
    reader.end()
