# SPDX-License-Identifier: Apache-2.0
"""More reports from the field; see test_reports.py."""
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
import builder  # noqa: E402  pylint: disable=wrong-import-position

# Without a test of that name, and why.
NOT_HERE = {32: "how much is on huge pages is not reported yet"}


def table_config(checkpoint, name="demo", **more):
    return {"name": name, "checkpoint": str(checkpoint), "load": "on_demand",
            **more}


def test_every_report_has_a_test():
    """report_NN, in any language and folder."""
    found = set(NOT_HERE)
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
    if phase == "reload":
        if not any(m["name"] == "reload"
                   for m in client.call("rpc.discover")["methods"]):
            pytest.skip("this engramd has no reload")
        client.call("reload", table="demo")
        return
    client.request("attach", table="demo")
    if phase == "drain":
        client.read()
        client.call("unload", table="demo")


@pytest.mark.parametrize("phase", ["load", "reload", "drain", "attach"])
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
