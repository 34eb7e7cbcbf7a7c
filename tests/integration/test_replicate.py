# SPDX-License-Identifier: Apache-2.0
"""memory.numa "replicate": a copy of every table on each node of memory.  A
second node is told of by tests/numa/two_nodes.c; on real ones: tests/numa."""
import hashlib
import json
import os
import subprocess

import pytest

import engramd
from engramd import until

TWO_NODES = engramd.BUILD / "tests" / "two_nodes.so"
REPLICATE = {"numa": "replicate"}
BACKINGS = [{}, {"huge_pages": "off"}, {"backing": "memfd"}]


@pytest.fixture
def two_nodes(monkeypatch):
    monkeypatch.setenv("LD_PRELOAD", str(TWO_NODES))
    monkeypatch.setenv("ASAN_OPTIONS", os.environ.get("ASAN_OPTIONS", "") +
                       ":verify_asan_link_order=0")


def table(checkpoint, **more):
    return {"name": "demo", "checkpoint": str(checkpoint), **more}


def started(make, checkpoint, reload=None, **memory):
    sidecar = make([table(checkpoint, **({"reload": reload} if reload else
                                         {}))],
                   memory={**REPLICATE, **memory})
    client = sidecar.client()
    until(lambda: client.table("demo")["state"] in ("ready", "failed"),
          "loaded")
    assert client.table("demo")["state"] == "ready", client.table("demo")
    return sidecar, client


def suffixes(sidecar):
    """What the names end in, behind the layer."""
    return sorted(name.split(".demo.")[1] for name in sidecar.segments())


def rows_of(client, **params):
    """sha256 of the segments that an attach gives, behind their headers, and
    the answer."""
    client.close_fds()
    answer = client.call("attach", table="demo", **params)
    sums = []
    for layer in answer["layers"]:
        with open(f"/proc/self/fd/{client.fds[layer['fd']]}", "rb") as file:
            sums.append(hashlib.sha256(file.read()[2 << 20:]).hexdigest())
    return sums, answer


def same_copies(client):
    """Each of its own memory, all of the same rows."""
    first, answer = rows_of(client, node=0)
    assert answer["node"] == 0
    inodes = [os.fstat(fd).st_ino for fd in client.fds]
    client.call("detach", lease=answer["lease"])
    second, answer = rows_of(client, node=1)
    assert answer["node"] == 1
    assert not set(inodes[1:]) & {os.fstat(fd).st_ino
                                  for fd in client.fds[1:]}
    assert first == second
    client.call("detach", lease=answer["lease"])
    return first


def test_one_node(make, checkpoint):
    """As without, and the log says so."""
    if os.path.exists("/sys/devices/system/node/node1"):
        pytest.skip("this machine has several nodes of memory")
    sidecar, client = started(make, checkpoint)
    assert suffixes(sidecar) == ["1.g1", "14.g1"]
    assert client.table("demo")["layers"][0]["copies"] is None
    assert client.call("attach", table="demo", node=5)["node"] is None
    assert "there is one node: one copy is made" in sidecar.log()


@pytest.mark.parametrize("memory", BACKINGS, ids=str)
def test_copies(make, checkpoint, two_nodes, memory):
    sidecar, client = started(make, checkpoint, **memory)
    if not sidecar.nameless:
        assert suffixes(sidecar) == ["1.g1.n0", "1.g1.n1", "14.g1.n0",
                                     "14.g1.n1"]
    demo = client.table("demo")
    copies = [layer["copies"] for layer in demo["layers"]]
    assert [[copy["node"] for copy in each] for each in copies] == [[0, 1]] * 2
    assert demo["bytes"] == sum(copy["bytes"] for each in copies
                                for copy in each)
    for layer, each in zip(demo["layers"], copies):
        assert [copy["bytes"] for copy in each] == [layer["bytes"]] * 2
        assert layer["segment"] == each[0]["segment"]
        assert each[1]["segment"].endswith(".n1")
    same_copies(client)
    job = client.finish(client.call("verify", table="demo")["job"])
    assert job["state"] == "done"
    assert job["bytes_done"] == job["bytes_total"]


def test_job_shows_copying(make, checkpoint, two_nodes):
    """The phase, and as much of it as there is."""
    sidecar = make([table(checkpoint, load="on_demand")], memory=REPLICATE)
    client = sidecar.client()
    job = client.finish(client.call("load", table="demo")["job"])
    assert (job["state"], job["phase"]) == ("done", "copying")
    assert job["bytes_done"] == job["bytes_total"] == \
        sum(x["bytes_total"] for x in job["layers"])


def test_all_locked(make, checkpoint, two_nodes):
    sidecar, client = started(make, checkpoint, lock="require")
    demo = client.table("demo")
    assert demo["locked"]
    if engramd.BUILD.name not in ("asan", "tsan"):
        assert sidecar.locked_bytes() >= demo["bytes"]


def test_chosen(make, checkpoint, two_nodes):
    """By the node that is named, else by the cores of the peer; where those are
    of both, by what fewest have."""
    _, client = started(make, checkpoint)
    given = [client.call("attach", table="demo", node=node)["node"]
             for node in (1, 0, 7)]
    assert given == [1, 0, 0]
    with pytest.raises(engramd.RpcError, match="node"):
        client.call("attach", table="demo", node=64)
    # two of node 0, one of node 1
    assert client.call("attach", table="demo")["node"] == 1
    leases = client.call("clients")["clients"][-1]["leases"]
    assert sorted(lease["node"] for lease in leases) == [0, 0, 1, 1]
    cores = os.sched_getaffinity(0)
    half = max(os.sysconf("SC_NPROCESSORS_CONF") // 2, 1)
    for node, wanted in enumerate(({x for x in cores if x < half},
                                   {x for x in cores if x >= half})):
        if not wanted:
            continue
        os.sched_setaffinity(0, wanted)
        try:
            assert {client.call("attach", table="demo")["node"]
                    for _ in range(3)} == {node}
        finally:
            os.sched_setaffinity(0, cores)


@pytest.mark.parametrize("adopt", ["verify", "background", "trust"])
def test_adopted(make, checkpoint, two_nodes, adopt):
    sidecar, client = started(make, checkpoint, adopt=adopt)
    rows = same_copies(client)
    names = sidecar.segments()
    sidecar.kill()
    sidecar.start()
    client = sidecar.client()
    demo = client.have("demo")
    assert demo["adopted"] and sidecar.segments() == names
    assert same_copies(client) == rows
    assert [x["node"] for x in demo["layers"][0]["copies"]] == [0, 1]


@pytest.mark.parametrize("gone", ["1.g1.n0", "14.g1.n1"])
def test_missing_copy_is_copied(make, checkpoint, two_nodes, gone):
    """Not read from the disk; the rest of an incomplete copy goes."""
    sidecar, client = started(make, checkpoint)
    rows = same_copies(client)
    sidecar.kill()
    kept = {name: (engramd.SHM / name).stat().st_ino
            for name in sidecar.segments()}
    (engramd.SHM / f"engramd.{sidecar.instance}.demo.{gone}").unlink()
    sidecar.start()
    client = sidecar.client()
    demo = client.have("demo")
    assert demo["adopted"] and suffixes(sidecar) == [
        "1.g1.n0", "1.g1.n1", "14.g1.n0", "14.g1.n1"]
    assert same_copies(client) == rows
    other = ".n1" if gone.endswith(".n0") else ".n0"
    for name, inode in kept.items():
        same = (engramd.SHM / name).stat().st_ino == inode
        assert same == name.endswith(other), name
    assert "copying to nodes where a copy is missing" in sidecar.log()
    job = client.finish(client.call("verify", table="demo")["job"])
    assert job["state"] == "done"


def spoil(sidecar, name):
    """A byte of the last rows; the header stays sound."""
    path = engramd.SHM / f"engramd.{sidecar.instance}.demo.{name}"
    with open(path, "r+b") as file:
        file.seek((2 << 20) + 1000)
        byte = file.read(1)
        file.seek((2 << 20) + 1000)
        file.write(bytes([byte[0] ^ 1]))


def test_verify_reads_every_copy(make, checkpoint, two_nodes):
    sidecar, client = started(make, checkpoint)
    spoil(sidecar, "14.g1.n1")
    job = client.finish(client.call("verify", table="demo")["job"])
    assert job["state"] == "failed"
    assert job["error"]["data"]["name"] == "ChecksumMismatch"
    assert "layer 14 on node 1" in job["error"]["message"]


def test_damaged_source_is_not_copied(make, checkpoint, two_nodes):
    """What is copied is checked, whatever adopt says: then it is loaded."""
    sidecar, client = started(make, checkpoint, adopt="trust")
    rows = same_copies(client)
    sidecar.kill()
    spoil(sidecar, "1.g1.n0")
    for name in sidecar.segments():
        if name.endswith(".n1"):
            (engramd.SHM / name).unlink()
    sidecar.start()
    client = sidecar.client()
    demo = client.have("demo")
    assert not demo["adopted"]
    assert "checksum" in demo["not_adopted"]
    assert same_copies(client) == rows


def test_other_ways_are_loaded(make, checkpoint, two_nodes, monkeypatch):
    """From one copy to two and back: what was there goes."""
    sidecar, client = started(make, checkpoint)
    rows = same_copies(client)
    for memory, names in (({}, ["1.g2", "14.g2"]),
                          (REPLICATE, ["1.g3.n0", "1.g3.n1", "14.g3.n0",
                                       "14.g3.n1"])):
        sidecar.kill()
        sidecar.config["memory"] = memory
        sidecar.write_config()
        sidecar.start()
        client = sidecar.client()
        assert not client.have("demo")["adopted"]
        assert len(sidecar.segments()) == len(names)
        assert [x.rpartition("g")[0] for x in suffixes(sidecar)] == \
            [x.rpartition("g")[0] for x in names]
    assert same_copies(client) == rows


def test_a_node_less(make, checkpoint, two_nodes):
    """What is left of a node that is not configured any more goes."""
    sidecar, client = started(make, checkpoint)
    sidecar.kill()
    sidecar.config["memory"] = {**REPLICATE, "numa_nodes": [1]}
    sidecar.write_config()
    sidecar.start()
    client = sidecar.client()
    client.have("demo")
    # one copy has no name of its own
    assert [x.split(".")[0] for x in suffixes(sidecar)] == ["1", "14"]
    assert client.call("attach", table="demo")["node"] is None


@pytest.mark.parametrize("mode", ["beside", "drain_first", "in_place"])
def test_reload(make, checkpoint, two_nodes, mode):
    sidecar, client = started(make, checkpoint,
                              {"mode": mode, "settle_seconds": 0})
    rows = same_copies(client)
    before = {(engramd.SHM / name).stat().st_ino
              for name in sidecar.segments()}
    job = client.finish(client.call("reload", table="demo",
                                    force=True)["job"])
    assert job["state"] == "done", job
    until(lambda: len(client.table("demo")["generations"]) == 1, "one is left")
    until(lambda: suffixes(sidecar) == ["1.g2.n0", "1.g2.n1", "14.g2.n0",
                                        "14.g2.n1"], "the names are new")
    assert same_copies(client) == rows
    after = {(engramd.SHM / name).stat().st_ino for name in sidecar.segments()}
    assert (after == before) == (mode == "in_place")
    job = client.finish(client.call("verify", table="demo")["job"])
    assert job["state"] == "done"


def test_held_and_rolled_back(make, checkpoint, two_nodes):
    sidecar, client = started(make, checkpoint, {"retain_seconds": 900})
    client.finish(client.call("reload", table="demo", force=True,
                              hold=True)["job"])
    assert len(sidecar.segments()) == 8
    client.call("publish", table="demo")
    assert client.call("attach", table="demo", node=1)["generation"] == 2
    assert client.call("rollback", table="demo")["generation"] == 1
    answer = client.call("attach", table="demo", node=1)
    assert (answer["generation"], answer["node"]) == (1, 1)


def test_room_of_each_node(make, checkpoint, two_nodes, monkeypatch):
    """Both have to have room; which has not is named, with the figures."""
    monkeypatch.setenv("TWO_NODES_FREE", str(3 << 20))
    sidecar = make([table(checkpoint, load="on_demand")], memory=REPLICATE)
    client = sidecar.client()
    job = client.finish(client.call("load", table="demo")["job"])
    assert job["error"]["data"]["name"] == "NoSpace"
    assert "node 1 has 3145728 available" in job["error"]["message"]
    assert job["error"]["data"]["available"] == 3 << 20
    assert sidecar.segments() == []


def test_keep_what_can_not_be_copied(make, checkpoint, two_nodes, monkeypatch):
    """No room for the copy that is missing: the one that is there stays."""
    sidecar, client = started(make, checkpoint)
    sidecar.kill()
    for name in sidecar.segments():
        if name.endswith(".n1"):
            (engramd.SHM / name).unlink()
    monkeypatch.setenv("TWO_NODES_FREE", str(3 << 20))
    sidecar.start()
    client = sidecar.client()
    until(lambda: client.table("demo")["state"] == "failed", "no room")
    assert client.table("demo")["error"]["data"]["name"] == "NoSpace"
    assert suffixes(sidecar) == ["1.g1.n0", "14.g1.n0"]
    sidecar.kill()
    monkeypatch.delenv("TWO_NODES_FREE")
    sidecar.start()
    assert sidecar.client().have("demo")["adopted"]
    assert len(sidecar.segments()) == 4


def test_writable_is_of_one_copy(make, checkpoint, two_nodes):
    """Who can write spoils what those on its node read, and verify tells."""
    sidecar, client = started(make, checkpoint)
    answer = client.call("attach", table="demo", node=1, writable=True)
    assert (answer["node"], answer["writable"]) == (1, True)
    fd = client.fds[answer["layers"][0]["fd"]]
    byte = os.pread(fd, 1, (2 << 20) + 1000)
    os.pwrite(fd, bytes([byte[0] ^ 1]), (2 << 20) + 1000)
    job = client.finish(client.call("verify", table="demo")["job"])
    assert "layer 1 on node 1" in job["error"]["message"]


def test_prune(make, checkpoint, two_nodes):
    """Nothing of one that runs; of a killed one all copies."""
    sidecar, _ = started(make, checkpoint)

    def listed():
        done = subprocess.run(
            [engramd.BUILD / "bin" / "engramctl", "--json", "--instance",
             sidecar.instance, "prune"],
            check=True, capture_output=True, text=True)
        return sorted(x["name"] for x in json.loads(done.stdout)["entries"])

    assert listed() == []
    sidecar.kill()
    assert listed() == sidecar.names()
    sidecar.start()
    sidecar.client().have("demo")
