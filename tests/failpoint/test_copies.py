# SPDX-License-Identifier: Apache-2.0
"""engramd dies, or fails, while it copies a table to another node of memory;
that there are two, tests/numa/two_nodes.c tells it."""
import errno
import os

import pytest

import engramd
import row_reader
from engramd import until
from test_failpoints import BUILD, POINTS, with_point

COPY = [name for name, _ in POINTS if name.startswith("copy")]
FAILING = [name for name in COPY if name != "copy_begin"]


@pytest.fixture
def tables(make, seeded, monkeypatch):
    monkeypatch.setenv("LD_PRELOAD",
                       str(engramd.BUILD / "tests" / "two_nodes.so"))
    monkeypatch.setenv("ASAN_OPTIONS", os.environ.get("ASAN_OPTIONS", "") +
                       ":verify_asan_link_order=0")
    return make([{"name": "demo", "checkpoint": str(seeded[0])}],
                start=False, memory={"numa": "replicate"})


def mending(sidecar):
    """What is left is one copy of two."""
    sidecar.start()
    sidecar.client().have("demo")
    sidecar.kill()
    for name in sidecar.segments():
        if name.endswith(".n1"):
            (engramd.SHM / name).unlink()


def whole(sidecar, known):
    """Both copies, of the right rows, and nothing else."""
    client = sidecar.client()
    demo = client.have("demo")
    assert demo["content_id"] == known[0]
    assert sorted(name.rpartition(".")[2] for name in sidecar.segments()) == [
        "n0", "n0", "n1", "n1"]
    job = client.finish(client.call("verify", table="demo")["job"])
    assert job["state"] == "done", job
    for node in 0, 1:
        answer = client.call("attach", table="demo", node=node)
        assert answer["node"] == node
    reader = row_reader.RowReader(sidecar, "demo", known)
    reader.goes_on()
    reader.end()


@pytest.mark.parametrize("point", COPY)
def test_dies(tables, known, point):
    if point == "copy_mended":
        mending(tables)
    with_point(tables, point, "kill")
    until(lambda: tables.process.poll() is not None, "it dies")
    tables.start()
    whole(tables, known)


@pytest.mark.parametrize("point", FAILING)
def test_fails(tables, known, point):
    """All that was made goes; of what was left the copy stays."""
    left = []
    if point == "copy_mended":
        mending(tables)
        left = tables.segments()
    with_point(tables, point, f"error:{errno.EIO}")
    until(tables.answers, "the sidecar answers")
    client = tables.client()
    until(lambda: client.table("demo")["state"] == "failed", "it fails")
    assert set(left) <= set(tables.segments())
    if not left:
        assert tables.segments() == []
    tables.kill()
    tables.start()
    whole(tables, known)


def test_points_are_all():
    assert COPY == ["copy_begin", "copy_done", "copy_mended"]
    assert (BUILD / "engramd").exists()
