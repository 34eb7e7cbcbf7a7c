# SPDX-License-Identifier: Apache-2.0
"""A table that can not be taken over for lack of descriptors or addresses
stays in memory, and is taken over once there are enough.  That the calls which
adopt a segment fail with these errors is in tests/fault/test_segment_faults.c.
"""
import errno

import pytest

import engramd
import row_reader

LACKING = {
    errno.EMFILE: ("Too many open files", "raise LimitNOFILE="),
    errno.ENOMEM: ("Cannot allocate memory",
                   "free some memory, or raise RLIMIT_AS"),
}


def inodes(sidecar):
    return {name: (sidecar.home / name).stat().st_ino
            for name in sidecar.segments()}


@pytest.mark.parametrize("load", ["start", "on_demand"])
@pytest.mark.parametrize("lacking", LACKING, ids=errno.errorcode.get)
def test_kept(make, seeded, known, lacking, load):
    message, fix = LACKING[lacking]
    sidecar = make([{"name": "demo", "checkpoint": str(seeded[0]),
                     "load": load}])
    before = sidecar.client().have("demo")
    reader = row_reader.RowReader(sidecar, "demo", known)
    reader.goes_on()
    segments = inodes(sidecar)
    sidecar.kill()

    sidecar.start(wait=False, binary=engramd.BUILD / "failpoint" / "engramd",
                  ENGRAM_FAILPOINT=f"adopt_mapped:2=error:{lacking}")
    engramd.until(lambda: "segments are kept" in sidecar.log(), "it says so")

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
