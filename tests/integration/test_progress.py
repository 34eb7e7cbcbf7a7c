# SPDX-License-Identifier: Apache-2.0
"""How far a load is: of each layer and in all, in jobs, events, the status that
systemd shows, and the control page."""
import os
import re
import socket
import struct

import pytest

import engramd

# A few seconds for the checkpoint, so that it can be watched.
SLOW = {"bytes_per_second": "1MiB", "threads": 1, "queue_depth": 1,
        "block_bytes": "64KiB"}
# struct engram_control_table, after the name: shm/engram_control.h
SLOTS, SLOT, NAME = 248, 256, 64
FIELDS = {"bytes_total": 80, "bytes_done": 88, "bytes_verified": 136,
          "load_rate": 144}


def counters(sidecar, table):
    """What the control page says of it."""
    page = (sidecar.home / f"engramd.{sidecar.instance}.ctl").read_bytes()
    for at in range(SLOTS, len(page), SLOT):
        if page[at:at + NAME].rstrip(b"\0") == table.encode():
            return {name: struct.unpack_from("<Q", page, at + offset)[0]
                    for name, offset in FIELDS.items()}
    raise AssertionError(f"no {table} in the control page")


@pytest.fixture
def slow(make, checkpoint, tmp_path):
    """A sidecar that loads at a crawl, and what it tells systemd."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.bind(str(tmp_path / "notify"))
        notify.settimeout(engramd.DEADLINE)
        os.environ["NOTIFY_SOCKET"] = str(tmp_path / "notify")
        try:
            sidecar = make([{"name": "demo", "checkpoint": str(checkpoint),
                             "load": "on_demand"}], loader=SLOW)
        finally:
            del os.environ["NOTIFY_SOCKET"]
        yield sidecar, notify


def add_up(job):
    for key in "bytes_total", "bytes_done":
        # The figures of a moment later, at most.
        assert sum(layer[key] for layer in job["layers"]) >= job[key]
    assert [layer["layer_id"] for layer in job["layers"]] == [1, 14]


def test_a_load_is_watched(slow):
    sidecar, notify = slow
    client = sidecar.client()
    client.call("events.subscribe")
    number = client.call("load", table="demo")["job"]

    def under_way():
        job = client.call("job.get", job=number)
        return job if job["bytes_done"] and job["rate"] else None

    job = engramd.until(under_way, "some is read")
    assert job["state"] == "running" and job["phase"] == "reading"
    assert job["eta_seconds"] > 0
    add_up(job)
    first, last = job["layers"]
    assert first["rate"] > 0 and first["eta_seconds"] > 0
    # One after the other, as they are on one drive.
    assert last == {**last, "bytes_done": 0, "rate": 0, "eta_seconds": None}

    def shown():
        seen = counters(sidecar, "demo")
        return seen if seen["bytes_done"] and seen["load_rate"] else None

    seen = engramd.until(shown, "the control page shows it")
    assert 0 < seen["bytes_done"] < seen["bytes_total"] == job["bytes_total"]
    status = re.compile(r"STATUS=0 of 1 tables ready; reading demo: "
                        r"\d+\.\d of 0\.0 GiB, \d+\.\d\d GiB/s, \d+ s left")
    while not status.search(notify.recv(4096).decode()):
        pass

    job = client.finish(number)
    assert job["state"] == "done" and job["eta_seconds"] is None
    add_up(job)
    assert all(layer["bytes_done"] == layer["bytes_total"]
               and layer["rate"] > 0 and layer["eta_seconds"] is None
               for layer in job["layers"])
    total = job["bytes_total"]
    assert counters(sidecar, "demo") == {
        "bytes_total": total, "bytes_done": total, "bytes_verified": total,
        "load_rate": 0}
    events = [x["params"] for x in client.notifications
              if x["method"] == "event.job"]
    # It began, it went on, it ended.
    assert {"running", "done"} <= {x["state"] for x in events}
    assert any(0 < x["layers"][0]["bytes_done"] < x["layers"][0]["bytes_total"]
               for x in events if x["layers"])


@pytest.mark.parametrize("layout", ["packed", "split"])
def test_verify_has_layers(make, checkpoint, layout):
    sidecar = make([{"name": "demo", "checkpoint": str(checkpoint),
                     "layout": layout}])
    client = sidecar.client()
    engramd.until(lambda: client.table("demo")["state"] == "ready", "loaded")
    job = client.finish(client.call("verify", table="demo")["job"])
    assert job["phase"] == "verifying"
    add_up(job)
    assert job["bytes_done"] == job["bytes_total"]
    assert all(layer["bytes_done"] == layer["bytes_total"]
               for layer in job["layers"])


def test_other_jobs_have_none(make, checkpoint):
    sidecar = make([{"name": "demo", "checkpoint": str(checkpoint)}])
    client = sidecar.client()
    engramd.until(lambda: client.table("demo")["state"] == "ready", "loaded")
    job = client.finish(client.call("unload", table="demo")["job"])
    assert job["layers"] == []
