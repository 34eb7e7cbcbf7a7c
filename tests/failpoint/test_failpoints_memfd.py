# SPDX-License-Identifier: Apache-2.0
"""The same with tables in memfds, which a service manager keeps: engramd dies
at every point, and the next one has what it should."""
import signal

import pytest

import engramd
import row_reader
from service_manager import Service, ServiceManager
from test_failpoints import (SIDECAR, again, held, killed_at, serves_again,
                             steady)


@pytest.fixture
def tables(tmp_path, seeded):
    manager = ServiceManager(tmp_path)
    service = Service(tmp_path, manager, [
        {"name": "steady", "checkpoint": str(seeded[0])},
        {"name": "demo", "checkpoint": str(seeded[1]), "load": "on_demand"}])
    yield service
    try:
        service.stop()
    finally:
        manager.close()


@pytest.fixture
def reader(tables, known):
    """Of "steady"; the sidecar is killed meanwhile."""
    steady(tables.client())
    reader = row_reader.RowReader(tables, "steady", known)
    reader.goes_on()
    yield reader
    reader.end()


@pytest.fixture
def usual(tables, reader, known):  # pylint: disable=unused-argument
    """What is held by one that has taken over "steady", with one reader."""
    tables.kill()
    again(tables)
    reader.attached(2)
    serves_again(tables, known)
    usual = held(tables)
    tables.kill()
    return usual


@pytest.mark.parametrize("point", SIDECAR)
def test_killed(tables, reader, known, usual, point):
    kept = tables.inodes()
    killed_at(tables, reader, known, point)
    now = held(tables)
    if not point.startswith("stop"):
        assert now == usual and tables.inodes() == kept
    else:  # what was not taken over was not handed to it either
        assert now.descriptors <= usual.descriptors
        assert now._replace(descriptors=usual.descriptors) == usual


@pytest.mark.parametrize("point", ["load_admitted", "free_begin"])
def test_stopped_at_once(tables, reader, usual, point, monkeypatch):
    """A second signal: all is removed from the store before it ends."""
    # leaving at once leaves threads, on purpose
    monkeypatch.setenv("TSAN_OPTIONS", "report_thread_leaks=0")
    tables.start(wait=False, binary=engramd.BUILD / "failpoint" / "engramd",
                 ENGRAM_FAILPOINT=f"{point}=sleep:60000")
    engramd.until(tables.answers, "it answers")
    client = tables.client()
    steady(client)
    assert held(tables).names == usual.names
    job = client.call("load", table="demo")["job"]
    if point == "free_begin":
        client.finish(job)
        client.call("unload", table="demo")
    for _ in range(2):
        tables.signal(signal.SIGTERM)
        engramd.until(lambda: "msg=stopping" in tables.log(), "it stops")
    assert tables.wait() == 1
    tables.hang_up()
    assert tables.names() == []
    reader.goes_on()
    again(tables)
    with tables.connection() as client:
        client.greet()
        steady(client)
