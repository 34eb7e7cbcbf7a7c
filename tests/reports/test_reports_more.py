# SPDX-License-Identifier: Apache-2.0
"""More reports from the field; see test_reports.py."""
import errno
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

import engramd

sys.path.insert(0, str(engramd.ROOT / "tests" / "checkpoint"))
sys.path.insert(0, str(engramd.ROOT / "tests" / "reports"))
# pylint: disable=wrong-import-position
import builder  # noqa: E402
import test_reports  # noqa: E402


def table_config(checkpoint, name="demo", **more):
    return {"name": name, "checkpoint": str(checkpoint), "load": "on_demand",
            **more}


def test_every_report_has_a_test():
    """report_NN, in any language and folder."""
    found = set()
    for path in (engramd.ROOT / "tests").rglob("*"):
        if path.suffix in (".py", ".c"):
            for names in re.findall(r"report((?:_\d\d(?:_and)?)+)_",
                                    path.read_text()):
                found |= {int(n) for n in re.findall(r"\d\d", names)}
    assert found == set(range(1, 33))


def ask(client, phase):
    """Begin what is to be interrupted."""
    if phase == "load":
        client.call("load", table="demo")
        return
    client.have("demo")
    if phase in ("reload", "held"):
        job = client.call("reload", table="demo", force=True,
                          hold=phase == "held")["job"]
        if phase == "held":
            assert client.finish(job)["state"] == "done"
            return
        engramd.until(lambda: client.call("job.get", job=job)["bytes_done"],
                      "bytes are read")
        return
    client.request("attach", table="demo")
    if phase == "drain":
        client.read()
        client.call("unload", table="demo")


@pytest.mark.parametrize("phase", ["load", "reload", "held", "drain",
                                   "attach"])
def test_report_02_killed_in(make, big_checkpoint, phase):
    """Five times in each; the next one comes up, and no more is there than
    one generation."""
    sidecar = make([table_config(big_checkpoint)])
    for _ in range(5):
        ask(sidecar.client(), phase)
        sidecar.kill()
        sidecar.start()
        client = sidecar.client()
        client.have("demo")
        assert len(sidecar.segments()) == 2
        assert client.table("demo")["leases"] == 0
        if phase == "load":
            client.finish(client.call("unload", table="demo")["job"])


def test_report_07_reloaded_under_descriptors(make, tmp_path):
    """Two checkpoints by turns, attached after each reload: the contents are
    those of the content id, and what was attached before stays as it was."""
    seeds = [engramd.synth(tmp_path / str(seed), *engramd.SMALL, "--seed",
                           str(seed)) for seed in (0, 1)]
    sidecar = make([table_config(seeds[0])])
    client = sidecar.client()
    client.have("demo")
    known, lease, old = {}, None, None
    for turn in range(20):
        job = client.finish(client.call(
            "reload", table="demo", checkpoint=str(seeds[turn % 2]))["job"])
        assert job["state"] == "done" and job["unchanged"] == (turn == 0)
        if lease:
            assert test_reports.contents(client.fds[1:]) == old
            client.close_fds()
        answer = client.call("attach", table="demo")
        if lease:
            client.call("detach", lease=lease)
        lease = answer["lease"]
        old = test_reports.contents(client.fds[1:])
        assert known.setdefault(answer["content_id"], old) == old, turn
    assert len(set(known.values())) == len(known) == 2
    engramd.until(lambda: len(sidecar.segments()) == 2,
                  "one generation is left")


def test_report_19_a_rank_without_rows(make, checkpoint):
    """Refused where a rank would have no heads; one whose heads are padding
    in part is not."""
    sidecar = make([table_config(checkpoint)])
    client = sidecar.client()
    client.load("demo")
    heads = client.call("attach", table="demo")["layers"][0]["local_heads"]
    for size in range(1, heads + 2):
        each = -(-heads // size)
        ranks_with_heads = -(-heads // each)
        if ranks_with_heads == size:
            client.call("attach", table="demo", tp_rank=size - 1,
                        tp_size=size)
            continue
        with pytest.raises(engramd.RpcError) as caught:
            client.call("attach", table="demo", tp_rank=size - 1,
                        tp_size=size)
        assert str(size) in caught.value.message
    client.close_fds()


@pytest.mark.parametrize("report, case, word", [
    (19, "shard_empty", "model-00001-of-00002.safetensors"),
    (21, "scale_missing", "layers.14.engram.embed.scale"),
    (21, "scale_rows", "layers.1.engram.embed.scale"),
    (21, "scale_width", "scale"),
    (21, "shard_missing", "safetensors")])
def test_report_19_21_refused(make, tmp_path, report, case, word):
    """Never a default: it would be fluent wrong text."""
    folder = engramd.ROOT / "tests" / "bad" / "checkpoint" / case
    spec = importlib.util.spec_from_file_location(case, folder / "make.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    checkpoint = builder.Checkpoint()
    module.make(checkpoint)
    checkpoint.write(tmp_path / "checkpoint")
    sidecar = make([table_config(tmp_path / "checkpoint")])
    client = sidecar.client()
    job = client.finish(client.call("load", table="demo")["job"])
    assert job["state"] == "failed", report
    assert job["bytes_done"] == 0
    error = job["error"]
    assert word in error["message"] + error["data"].get("path", ""), error
    assert client.table("demo")["state"] == "failed"
    assert sidecar.segments() == []


class Cgroup:
    """With a limit of memory, for one command."""

    def __init__(self, limit):
        root = pathlib.Path("/sys/fs/cgroup")
        self.version = 2 if (root / "cgroup.controllers").exists() else 1
        base = root if self.version == 2 else root / "memory"
        self.dir = base / f"engram-test-{os.getpid()}"
        file = "memory.max" if self.version == 2 else "memory.limit_in_bytes"
        try:
            self.dir.mkdir()
            (self.dir / file).write_text(str(limit))
        except OSError as error:
            self.close()
            pytest.skip(f"needs a cgroup of its own: {error}")

    def enter(self):
        """For preexec_fn."""
        (self.dir / "cgroup.procs").write_text(str(os.getpid()))

    def close(self):
        if self.dir.is_dir():
            self.dir.rmdir()


def test_report_25_cgroup_limit(make, big_checkpoint):
    """The table fits, a second does not: refused with both figures, before
    a byte is read."""
    probe = make([table_config(big_checkpoint)])
    size = probe.client().have("demo")["bytes"]
    cgroup = Cgroup(size * 6 // 5 + (96 << 20))
    sidecar = make([table_config(big_checkpoint, "one"),
                    table_config(big_checkpoint, "two")], start=False)
    try:
        with open(sidecar.log_file, "ab") as log:
            sidecar.process = subprocess.Popen(
                [engramd.ENGRAMD, "-c", sidecar.config_file],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                preexec_fn=cgroup.enter)
        sidecar.wait_answer()
        client = sidecar.client()
        client.load("one")
        refused = None
        # as many as fit, and one more
        for turn in range(8):
            job = client.call("load", table=f"more{turn}",
                              checkpoint=str(big_checkpoint))["job"]
            job = client.finish(job)
            if job["state"] == "failed":
                refused = job
                break
        assert refused, "there was room for eight"
        data = refused["error"]["data"]
        assert data["name"] == "NoSpace"
        assert data["needed"] >= size and data["available"] < data["needed"]
        assert refused["bytes_done"] == 0
        assert client.table("one")["state"] == "ready"
        sidecar.stop()
        sidecar.process = None
    finally:
        if sidecar.process and sidecar.process.poll() is None:
            sidecar.process.kill()
            sidecar.process.wait(engramd.DEADLINE)
        cgroup.close()


def test_report_28_eight_clients_register_at_once(make, checkpoint):
    """Each attaches, registers and reads; how long each takes is in the
    report of tests/bench/bench_attach.py."""
    example = engramd.BUILD / "bin" / "engram-cuda-example"
    if not shutil.which("nvidia-smi") or not example.exists():
        pytest.skip("needs a GPU, and libengram_cuda")
    sidecar = make([table_config(checkpoint)])
    sidecar.client().load("demo")
    clients = [subprocess.Popen(
        [example, "demo"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "ENGRAMD_SOCKET": str(sidecar.socket)})
        for _ in range(8)]
    outputs = [client.communicate(timeout=engramd.DEADLINE)
               for client in clients]
    assert [client.returncode for client in clients] == [0] * 8, outputs
    assert len({out for out, _ in outputs}) == 1


def shm_options():
    """How the tmpfs that lies there on top is mounted."""
    mounts = [line.split() for line in
              pathlib.Path("/proc/self/mounts").read_text().splitlines()]
    return [m[3] for m in mounts if m[1] == str(engramd.SHM)][-1]


def huge_in_smaps(sidecar):
    """Bytes that it has mapped by huge pages, by the file's inode."""
    found, inode = {}, None
    for line in pathlib.Path(
            f"/proc/{sidecar.process.pid}/smaps").read_text().splitlines():
        words = line.split()
        if not words[0].endswith(":"):
            inode = int(words[4])
        elif words[0] == "ShmemPmdMapped:":
            found[inode] = found.get(inode, 0) + (int(words[1]) << 10)
    return found


@pytest.mark.parametrize("wish", ["try", "require"])
def test_report_32_no_huge_page_is_left(make, checkpoint, wish):
    """As when the page cache has all memory in small pieces: the kernel finds
    no huge page.  How much is on huge pages is said, and what helps."""
    if os.uname().machine != "x86_64":
        pytest.skip("knows the number of madvise on x86-64 only")
    shmem = pathlib.Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
    if not shmem.exists():
        pytest.skip("this kernel has no transparent huge pages of shmem")
    if re.search(r"\[(always|within_size|force)\]", shmem.read_text()) or \
            "huge=" in shm_options():
        pytest.skip("tmpfs takes huge pages without being asked here")
    madvise, collapse = 28, 25
    sidecar = make([table_config(checkpoint)], start=False,
                   memory={"huge_pages": wish})
    test_reports.start(sidecar, preexec_fn=test_reports.deny(
        madvise, errno.ENOMEM, third=collapse))
    client = sidecar.client()
    job = client.finish(client.call("load", table="demo")["job"])
    if wish == "require":
        data = job["error"]["data"]
        assert data["name"] == "NoSpace"
        assert 0 == data["available"] < data["needed"]
        assert "vm.drop_caches" in data["fix"]
        assert sidecar.segments() == []
        return
    assert job["state"] == "done", job
    table = client.table("demo")
    assert "vm.drop_caches=3 vm.compact_memory=1" in table["huge_advice"]
    mapped = huge_in_smaps(sidecar)
    for layer in table["layers"]:
        inode = (sidecar.home / layer["segment"]).stat().st_ino
        assert layer["huge_bytes"] == mapped[inode] == 0
