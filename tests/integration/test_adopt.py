# SPDX-License-Identifier: Apache-2.0
"""What a killed engramd has left becomes a table of the next one, without a
row being read from the disk again, or is removed."""
import json
import mmap
import os
import signal

import pytest

import engramd


@pytest.fixture
def checkpoint(tmp_path):
    return engramd.synth(tmp_path / "checkpoint")


def table(checkpoint, **more):
    return {"name": "demo", "checkpoint": str(checkpoint), **more}


def kill(sidecar):
    sidecar.process.send_signal(signal.SIGKILL)
    sidecar.process.wait()
    sidecar.clients = []


def ready(sidecar):
    client = sidecar.client()
    engramd.until(lambda: client.table("demo")["state"] == "ready",
                  "the table is ready")
    return client, client.table("demo")


def inodes(sidecar):
    return {name: os.stat(engramd.SHM / name).st_ino
            for name in sidecar.names() if not name.endswith(".ctl")}


@pytest.mark.parametrize("mode", ["verify", "background", "trust"])
def test_killed_and_started(make, checkpoint, mode):
    """Three times: the same segments, generation and content."""
    sidecar = make([table(checkpoint)], memory={"adopt": mode})
    _, before = ready(sidecar)
    segments = inodes(sidecar)
    for _ in range(3):
        kill(sidecar)
        sidecar.start()
        _, after = ready(sidecar)
        assert after["adopted"] and not before["adopted"]
        assert after["generation"] == before["generation"]
        assert after["content_id"] == before["content_id"]
        assert after["bytes"] == before["bytes"]
        assert after["loader"] is None
        assert inodes(sidecar) == segments


def test_not_adopted_when_so_configured(make, checkpoint):
    sidecar = make([table(checkpoint)], memory={"adopt": "off"})
    ready(sidecar)
    segments = inodes(sidecar)
    kill(sidecar)
    sidecar.start()
    _, after = ready(sidecar)
    assert not after["adopted"]
    assert not set(inodes(sidecar).values()) & set(segments.values())


def test_adopted_rows_are_read(make, checkpoint):
    """A client of the adopted table gets the rows that it had before; one of
    before keeps reading."""
    sidecar = make([table(checkpoint)])
    client, _ = ready(sidecar)
    client.call("attach", table="demo")
    old = [os.dup(fd) for fd in client.fds]
    want = [os.pread(fd, os.fstat(fd).st_size, 0) for fd in old[1:]]
    kill(sidecar)
    sidecar.start()
    client, _ = ready(sidecar)
    client.call("attach", table="demo")
    got = [os.pread(fd, os.fstat(fd).st_size, 0) for fd in client.fds[1:]]
    assert got == want
    assert [os.pread(fd, os.fstat(fd).st_size, 0) for fd in old[1:]] == want
    for fd in old:
        os.close(fd)


def test_loaded_on_demand_before(make, checkpoint):
    sidecar = make([table(checkpoint, load="on_demand")])
    sidecar.client().load("demo")
    kill(sidecar)
    sidecar.start()
    _, after = ready(sidecar)
    assert after["adopted"]


def rewrite(path):
    """The same bytes, as a new file."""
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data)


def damage(sidecar, layer=0):
    """One byte of the first record; the file is made writable for it."""
    name = sorted(n for n in sidecar.names() if not n.endswith(".ctl"))[layer]
    with open(engramd.SHM / name, "r+b") as file:
        file.seek(2 << 20)
        byte = file.read(1)
        file.seek(2 << 20)
        file.write(bytes([byte[0] ^ 1]))


WHY = {"source": "its sources differ", "config": "its ",
       "layer": "No such file or directory", "records": "checksum",
       "later": "checksum", "header": "header checksum",
       "temporary": "No such file or directory"}


@pytest.mark.parametrize("what", WHY)
def test_changed_meanwhile(make, checkpoint, what):
    """It is loaded anew, and what was left is gone."""
    sidecar = make([table(checkpoint)])
    ready(sidecar)
    before = inodes(sidecar)
    kill(sidecar)
    first = engramd.SHM / sorted(before)[0]
    if what == "source":
        rewrite(next(checkpoint.glob("*.safetensors")))
    elif what == "config":
        file = checkpoint / "config.json"
        config = json.loads(file.read_text())
        config.get("text_config", config)["engram_pad_token_id"] = 3
        file.write_text(json.dumps(config))
    elif what == "layer":
        first.unlink()
    elif what in ("records", "later"):
        damage(sidecar, what == "later")
    elif what == "header":
        with open(first, "r+b") as file:
            file.seek(100)
            file.write(b"\xff")
    elif what == "temporary":
        os.rename(first, str(first) + ".tmp")
    sidecar.start()
    client, after = ready(sidecar)
    assert not after["adopted"]
    assert WHY[what] in after["not_adopted"]
    assert not set(inodes(sidecar).values()) & set(before.values())
    job = client.call("job.get", job=1)
    # What was read back in vain does not count.
    for part in [job] + job["layers"]:
        assert part["bytes_done"] == part["bytes_total"]
    job = client.finish(client.call("verify", table="demo")["job"])
    assert job["state"] == "done"


@pytest.mark.parametrize("load", ["start", "on_demand"])
def test_of_another_abi(make, checkpoint, load):
    """An upgrade: what was left is loaded anew, and it is said why."""
    sidecar = make([table(checkpoint, load=load)])
    sidecar.client().have("demo")
    kill(sidecar)
    for name in inodes(sidecar):
        with open(engramd.SHM / name, "r+b") as file:
            file.seek(8)
            ours = int.from_bytes(file.read(4), "little")
            file.seek(8)
            file.write((ours + 7).to_bytes(4, "little"))
    sidecar.start()
    client = sidecar.client()
    after = client.have("demo")
    why = ("a reload is needed, the ABI changed from version "
           f"{ours + 7} to {ours}")
    assert not after["adopted"]
    line = next(line for line in sidecar.log().splitlines()
                if "not adopted" in line)
    assert why in line and "level=warn" in line
    if load == "start":
        assert after["not_adopted"] == why
        client.finish(client.call("unload", table="demo")["job"])
        client.load("demo")
    assert client.table("demo")["not_adopted"] is None


def test_damage_that_is_trusted_is_found_by_verify(make, checkpoint):
    sidecar = make([table(checkpoint)],
                   memory={"adopt": "trust", "lock": "off"})
    ready(sidecar)
    kill(sidecar)
    damage(sidecar)
    sidecar.start()
    client, after = ready(sidecar)
    assert after["adopted"]
    job = client.finish(client.call("verify", table="demo")["job"])
    assert job["error"]["data"]["name"] == "ChecksumMismatch"


def test_damage_is_found_meanwhile(make, checkpoint):
    """The table is withdrawn from everybody, and loaded once nobody has
    it."""
    sidecar = make([table(checkpoint)],
                   memory={"adopt": "background", "lock": "off"})
    ready(sidecar)
    segments = inodes(sidecar)
    kill(sidecar)
    damage(sidecar)
    sidecar.start()
    client = sidecar.client()
    engramd.until(lambda: client.table("demo")["generation"] == 2,
                  "the table is loaded anew")
    assert not client.table("demo")["adopted"]
    assert not set(inodes(sidecar).values()) & set(segments.values())
    assert client.finish(client.call("verify", table="demo")["job"])[
        "state"] == "done"


def test_locked_once_it_is_lent(make, checkpoint):
    sidecar = make([table(checkpoint)],
                   memory={"adopt": "trust", "lock": "try"})
    client, before = ready(sidecar)
    if not before["locked"]:
        pytest.skip("locking memory is not allowed here")
    kill(sidecar)
    sidecar.start()
    client, after = ready(sidecar)
    assert after["adopted"]
    engramd.until(lambda: client.table("demo")["locked"], "it is locked")


def test_tables_of_nobody_go(make, checkpoint):
    """A table that only a request had named is nobody's after a crash."""
    sidecar = make([])
    client = sidecar.client()
    job = client.finish(client.call("load", table="demo",
                                    checkpoint=str(checkpoint))["job"])
    assert job["state"] == "done"
    kill(sidecar)
    sidecar.start()
    assert inodes(sidecar) == {}


def epoch(page):
    """As who has mapped the control page reads it."""
    return f"{int.from_bytes(page[80:88], 'little'):016x}"


def test_keep(make, checkpoint):
    """A shutdown may leave the tables; one without removes what was left,
    adopted or not."""
    sidecar = make([table(checkpoint)])
    client, before = ready(sidecar)
    segments = inodes(sidecar)
    with open(engramd.SHM / f"engramd.{sidecar.instance}.ctl", "rb") as file:
        page = mmap.mmap(file.fileno(), 4096, prot=mmap.PROT_READ)
    assert epoch(page) == client.hello["boot_epoch"]
    client.call("shutdown", keep=True)
    assert sidecar.process.wait(engramd.DEADLINE) == 0
    sidecar.clients = []
    assert inodes(sidecar) == segments and epoch(page) == "0" * 16
    sidecar.start()
    client, after = ready(sidecar)
    assert epoch(page) == client.hello["boot_epoch"]
    assert after["adopted"]
    assert after["generation"] == before["generation"]


def test_keep_needs_names(make, checkpoint):
    sidecar = make([table(checkpoint)], start=False,
                   memory={"backing": "memfd"})
    sidecar.start(wait=False)
    engramd.until(sidecar.answers, "the sidecar answers")
    client, _ = ready(sidecar)
    with pytest.raises(engramd.RpcError) as caught:
        client.call("shutdown", keep=True)
    assert caught.value.name == "Unsupported"
    sidecar.ping()


def test_next_generation_counts_on(make, checkpoint):
    sidecar = make([table(checkpoint)])
    client, _ = ready(sidecar)
    client.finish(client.call("unload", table="demo")["job"])
    client.load("demo")
    assert client.table("demo")["generation"] == 2
    kill(sidecar)
    sidecar.start()
    client, after = ready(sidecar)
    assert (after["adopted"], after["generation"]) == (True, 2)
    client.finish(client.call("unload", table="demo")["job"])
    client.load("demo")
    assert client.table("demo")["generation"] == 3
