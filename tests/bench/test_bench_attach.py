# SPDX-License-Identifier: Apache-2.0
"""bench_attach.py from end to end, with a CUDA runtime that only pretends: the
sidecar, the processes and what they hold of the table are real."""
import json
import os
import pathlib
import subprocess
import sys

import pytest

import attach_tables
import bench_attach
import plot

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PROBE = ROOT / os.environ.get("ENGRAM_BUILD", "build") \
    / "tests/attach_probe_fake"


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    if not PROBE.exists():
        pytest.skip(f"no {PROBE.name}: built where there is a CUDA toolkit")
    directory = tmp_path_factory.mktemp("attach")
    out = directory / "attach.json"
    done = subprocess.run(
        [sys.executable, HERE / "bench_attach.py", "--quick", "--gib", "0.03",
         "--repeat", "2", "--probe", PROBE, "--dir", directory, "--out", out],
        capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [p.name for p in directory.iterdir()] == ["attach.json"]
    return json.loads(out.read_text())


def test_sizes(result):
    assert result["pages"]
    for case in result["pages"]:
        whole, rank, ranks = case["whole"], case["rank"], case["ranks"]
        assert whole["gib"] == pytest.approx(0.03, rel=0.2)
        assert rank["gib"] == pytest.approx(whole["gib"] / 8, rel=0.1)
        assert ranks["gib"] == rank["gib"]
        assert whole["device_bytes"] > rank["device_bytes"] > 0
        assert whole["register_s_per_gib"]["samples"] == 2
        assert ranks["register_s_per_gib"]["samples"] == 16


def test_no_process_has_a_copy(result):
    """The sidecar and one process share the table, then two processes."""
    for case in result["pages"]:
        for held in case["memory"]:
            table = held["table"]
            sharers = held["processes"] + 1
            assert table["rss"] > 0.9 * case["whole"]["gib"] * 2**30
            assert table["pss"] == pytest.approx(table["rss"] / sharers,
                                                 rel=0.1)
            assert table["private_clean"] == table["private_dirty"] == 0
            assert held["grown"]["private_dirty"] < 1 << 20


def test_pages_are_of_the_size_asked_for(result):
    for case in result["pages"]:
        share = case["sidecar"]["shmempmdmapped"] / case["sidecar"]["rss"]
        if case["tmpfs_huge"] == "never":
            assert share == 0
        # always: as many as the kernel finds


def test_table_of_results(result):
    text = attach_tables.tables(result, plot.markdown)
    assert text.count("eight ranks at once, each") == len(result["pages"])
    assert all(line.endswith("|") for line in text.splitlines()
               if line.startswith("|"))
    assert plot.machine(result).startswith(result["environment"]["gpu"])


def test_smaps_of_other_files_do_not_count(tmp_path, monkeypatch):
    smaps = tmp_path / "smaps"
    smaps.write_text("""\
7f00-7f10 r--s 00000000 00:1 12 /dev/shm/engramd.a.bench.1.g1
Rss:                 100 kB
Pss:                  50 kB
Private_Clean:         0 kB
VmFlags: rd sh
7f10-7f20 r--s 00000000 00:1 13 /dev/shm/engramd.ab.bench.1.g1
Rss:                  40 kB
7f20-7f30 r--s 00000000 00:1 14 /dev/shm/engramd.a.bench.14.g1 (deleted)
Rss:                  20 kB
7f30-7f40 rw-p 00000000 00:0 0
Rss:                   8 kB
""")
    real = open
    monkeypatch.setattr("builtins.open", lambda path, **more: real(
        smaps if path == "/proc/7/smaps" else path, **more))
    found = bench_attach.table_memory(7, "a")
    assert found["rss"] == 120 << 10
    assert found["pss"] == 50 << 10
