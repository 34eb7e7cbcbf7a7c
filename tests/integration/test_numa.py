# SPDX-License-Identifier: Apache-2.0
"""Which nodes of memory tables are put on.  With two nodes: tests/numa."""
import json
import os

import pytest

import engramd

pytestmark = pytest.mark.skipif(
    not os.path.exists("/proc/self/numa_maps"),
    reason="the kernel knows no nodes of memory")


def load(make, checkpoint, **memory):
    sidecar = make([{"name": "demo", "checkpoint": str(checkpoint),
                     "load": "on_demand"}], memory=memory)
    client = sidecar.client()
    job = client.finish(client.call("load", table="demo")["job"])
    return sidecar, job, client.table("demo")


@pytest.mark.parametrize("backing", ["shm", "memfd"])
@pytest.mark.parametrize("memory", [
    {"numa": "bind", "numa_nodes": [0]}, {"numa": "interleave"}],
    ids=lambda memory: memory["numa"])
def test_read_back(make, checkpoint, backing, memory):
    sidecar, job, table = load(make, checkpoint, backing=backing, **memory)
    assert job["state"] == "done"
    for layer in table["layers"]:
        assert sum(x["bytes"] for x in layer["nodes"]) == layer["bytes"]
        if memory["numa"] == "bind":
            assert [x["node"] for x in layer["nodes"]] == [0]
    maps = open(f"/proc/{sidecar.process.pid}/numa_maps").read()
    policies = [line.split()[1] for line in maps.splitlines()
                if f"engramd.{sidecar.instance}.demo." in line]
    assert len(policies) == 2
    assert all(x.startswith(f"{memory['numa']}:") for x in policies)


def test_no_such_node(make, checkpoint):
    """Refused before anything is made."""
    sidecar, job, table = load(make, checkpoint, numa="bind", numa_nodes=[63])
    assert job["state"] == "failed" and table["state"] == "failed"
    data = job["error"]["data"]
    assert (data["name"], data["path"]) == ("InvalidArgument",
                                            "memory.numa_nodes")
    assert "node 63" in job["error"]["message"]
    assert sidecar.segments() == []


def test_adopted(make, checkpoint):
    """What a killed one has left is taken over, wherever it lies."""
    sidecar, _, _ = load(make, checkpoint, numa="bind", numa_nodes=[0])
    sidecar.kill()
    sidecar.start()
    client = sidecar.client()
    engramd.until(lambda: client.table("demo")["state"] == "ready", "adopted")
    table = client.table("demo")
    assert table["adopted"]
    assert [x["node"] for x in table["layers"][0]["nodes"]] == [0]


def test_not_while_it_runs(make, checkpoint):
    sidecar, _, _ = load(make, checkpoint)
    config = {**sidecar.config, "memory": {"numa": "interleave"}}
    sidecar.config_file.write_text(json.dumps(config))
    with pytest.raises(engramd.RpcError, match='"memory.numa" differs'):
        sidecar.client().call("config.reload")
