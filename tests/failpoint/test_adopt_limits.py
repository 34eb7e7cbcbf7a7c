# SPDX-License-Identifier: Apache-2.0
"""A table that can not be taken over for lack of descriptors or addresses
stays in memory, and is taken over once there are enough."""
import resource

import pytest

import engramd
import row_reader

LIMITS = {
    # the next descriptor is one too many
    "descriptors": (resource.RLIMIT_NOFILE, "Too many open files",
                    "raise LimitNOFILE="),
    # the next mapping is
    "addresses": (resource.RLIMIT_AS, "Cannot allocate memory",
                  "free some memory, or raise RLIMIT_AS"),
}


def in_use(sidecar, what):
    pid = sidecar.process.pid
    if what == resource.RLIMIT_AS:
        return engramd.proc_status(pid, "VmSize") << 10
    return sidecar.fd_count()


def inodes(sidecar):
    return {name: (sidecar.home / name).stat().st_ino
            for name in sidecar.segments()}


@pytest.mark.parametrize("load", ["start", "on_demand"])
@pytest.mark.parametrize("lacking", LIMITS)
def test_kept(make, seeded, known, lacking, load):
    what, message, fix = LIMITS[lacking]
    sidecar = make([{"name": "demo", "checkpoint": str(seeded[0]),
                     "load": load}])
    before = sidecar.client().have("demo")
    reader = row_reader.RowReader(sidecar, "demo", known)
    reader.goes_on()
    segments = inodes(sidecar)
    sidecar.kill()

    sidecar.start(wait=False, binary=engramd.BUILD / "failpoint" / "engramd",
                  ENGRAM_FAILPOINT="adopt_listed=stop")
    engramd.until(lambda: engramd.stopped(sidecar.process), "it stops")
    pid = sidecar.process.pid
    usual = resource.prlimit(pid, what)
    resource.prlimit(pid, what, (in_use(sidecar, what), usual[1]))
    sidecar.resume()
    engramd.until(lambda: "segments are kept" in sidecar.log(), "it says so")
    resource.prlimit(pid, what, usual)

    client = sidecar.client()
    engramd.until(lambda: client.table("demo")["state"] == "failed",
                  "the load fails")
    error = client.table("demo")["error"]
    assert "is in memory, but can not be taken over" in error["message"]
    assert error["message"].endswith(message)
    assert error["data"]["fix"].startswith(fix)
    assert inodes(sidecar) == segments
    reader.goes_on()

    client.load("demo")
    after = client.table("demo")
    assert after["adopted"] and after["error"] is None
    assert (after["generation"], after["content_id"]) == (
        before["generation"], before["content_id"])
    assert inodes(sidecar) == segments
    reader.goes_on()
    reader.end()
