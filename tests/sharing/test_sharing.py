# SPDX-License-Identifier: Apache-2.0
"""Processes that share nothing but the socket share one copy of the table.

Each client runs in its own mount and PID namespace with an empty /dev/shm,
as a container does; what it reads is compared with the checkpoint's bytes,
and the proportional set sizes of all processes must add up to one table.
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "quickstart"))
import run as quickstart  # noqa: E402  (the path comes first)

BUILD = (ROOT / os.environ.get("ENGRAM_BUILD", "build")).resolve()
ISOLATE = ["unshare", "--mount", "--pid", "--fork", "--kill-child",
           "--mount-proc"]
INSIDE = ("mount -t tmpfs none /dev/shm && "
          "test -z \"$(ls /dev/shm)\" && test \"$$\" = 1 && exec \"$@\"")


def can_isolate():
    try:
        return subprocess.run(
            [*ISOLATE, "sh", "-c", "mount -t tmpfs none /dev/shm"],
            capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


pytestmark = pytest.mark.skipif(
    not can_isolate(),
    reason="unshare(1) may not make mount and PID namespaces here")


@pytest.fixture(scope="module")
def checkpoint_dir(tmp_path_factory):
    directory = tmp_path_factory.mktemp("sharing") / "checkpoint"
    subprocess.run(
        [BUILD / "bin" / "engram-synth", "--layers", "1,14",
         "--engram-vocab-size", "5000", "--heads", "8", "--max-ngram", "4",
         "--dim", "256", "--shards", "3", "--vocab-size", "1024",
         "--compressed-vocab-size", "700", directory], check=True)
    return directory


@pytest.fixture(params=["shm", "memfd"])
def sidecar(request, tmp_path, checkpoint_dir):
    instance = f"sharing-{os.getpid()}"
    socket = tmp_path / "s"
    config = tmp_path / "engramd.json"
    config.write_text(json.dumps({
        "instance": instance,
        "socket": {"path": str(socket)},
        "memory": {"backing": request.param, "lock": "try"},
        "tables": [{"name": "demo", "checkpoint": str(checkpoint_dir),
                    "load": "start"}]}))
    process = subprocess.Popen([BUILD / "bin" / "engramd", "-c", config])
    try:
        wait_ready(process, socket)
        yield process, instance, socket
    finally:
        process.terminate()
        code = process.wait(30)
    assert code == 0
    assert quickstart.leftovers(instance) == []


def wait_ready(process, socket):
    for _ in range(1500):
        assert process.poll() is None, "engramd ended"
        if subprocess.run(
                [BUILD / "bin" / "engramctl", "--socket", socket, "health",
                 "ready"], capture_output=True).returncode == 0:
            return
        time.sleep(0.02)
    raise AssertionError("the table did not become ready")


def inner_pid(outer):
    """The child of unshare(1), as this namespace numbers it."""
    children = pathlib.Path(f"/proc/{outer}/task/{outer}/children")
    return int(children.read_text().split()[0])


def test_isolated_clients_share_one_copy(sidecar, tmp_path, checkpoint_dir):
    process, instance, socket = sidecar
    clients = []
    try:
        metas = []
        for n in range(2):
            clients.append(subprocess.Popen(
                [*ISOLATE, "sh", "-c", INSIDE, "sh",
                 BUILD / "tests" / "quickstart_client", socket, "demo",
                 quickstart.TEXT, tmp_path / f"{n}.bin"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        for client in clients:
            line = client.stdout.readline()
            assert line, "a client gave no result"
            metas.append(json.loads(line))
        memory = [quickstart.table_memory(pid, instance) for pid in
                  [process.pid, *(inner_pid(c.pid) for c in clients)]]
    finally:
        for client in clients:
            client.stdin.close()
        codes = [client.wait(30) for client in clients]
    assert codes == [0, 0]
    assert [meta["pid"] for meta in metas] == [1, 1]

    checkpoint = quickstart.Checkpoint(checkpoint_dir)
    results = [quickstart.read_results(tmp_path / f"{n}.bin", meta)
               for n, meta in enumerate(metas)]
    assert results[0] == results[1]
    ids, rows, out = results[0]
    assert quickstart.check_rows(checkpoint, ids, rows,
                                 metas[0]["dim"]) == len(ids)
    quickstart.check_gate(rows, out, metas[0])

    table = checkpoint.data_bytes()
    assert min(rss for rss, _ in memory) >= table
    # Headers and alignment are all that may come on top of one copy.
    assert sum(pss for _, pss in memory) <= table + len(quickstart.LAYERS) \
        * (8 << 20)


def test_every_row_of_every_layer(sidecar, checkpoint_dir, tmp_path):
    """Stored bytes, read through the public interface, row by row."""
    _, _, socket = sidecar
    checkpoint = quickstart.Checkpoint(checkpoint_dir)
    for layer in quickstart.LAYERS:
        shape = checkpoint.tensors[f"layers.{layer}.engram.embed.weight"][2]
        # The first, the last, and a stride that meets every head.
        ids = sorted({0, shape[0] - 1, *range(7, shape[0], 997)})
        answer = subprocess.run(
            [BUILD / "bin" / "engramctl", "--socket", socket, "rows", "demo",
             "--layer", str(layer), "--json", "--ids",
             ",".join(map(str, ids))],
            check=True, capture_output=True, text=True).stdout
        got = json.loads(answer)["rows"]
        assert len(got) == len(ids)
        for row_id, row in zip(ids, got):
            codes, scales = checkpoint.row(layer, row_id)
            assert row["row"] == row_id
            assert bytes.fromhex(row["codes"]) == codes
            assert bytes.fromhex(row["scales"]) == scales
