# SPDX-License-Identifier: Apache-2.0
"""bench_load.py from end to end on tables of a few MiB: what it measures is
real, only its figures mean nothing."""
import json
import pathlib
import subprocess
import sys

import pytest

import drive
import load_plots
import plot

HERE = pathlib.Path(__file__).resolve().parent
WAYS = {"preadv", "mmap", "mmap_threads", "preadv_full", "mmap_full",
        "engramd", "engramd_checked"}


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    directory = tmp_path_factory.mktemp("load")
    out = directory / "load.json"
    done = subprocess.run(
        [sys.executable, HERE / "bench_load.py", "--quick", "--gib", "0.02",
         "--threads", "1", "2", "--dir", directory, "--out", out],
        capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    # Checkpoints are gone again.
    assert [p.name for p in directory.iterdir()] == ["load.json"]
    return json.loads(out.read_text())


def test_all_ways_get_all_bytes(result):
    ways = result["drive"]["ways"]
    assert WAYS <= ways.keys()
    assert ways.keys() | result["drive"]["skipped"].keys() \
        == WAYS | {"safetensors"}
    assert all(one["median"] > 0 and one["of_limit"] > 0
               for one in ways.values())


def test_engramd_did_all_of_it(result):
    for loader in (result["drive"]["loader"], result["curve"][0]["loader"],
                   result["ramdisk"]["engramd"][0]["loader"]):
        assert loader["engine"] in ("io_uring", "preadv")
        assert isinstance(loader["locked"], bool)
        assert 0 <= loader["huge"] <= 1
    assert [x["threads"] for x in result["ramdisk"]["engramd"]] == [1, 2]


def test_pages_are_of_the_size_asked_for(result):
    assert [(x["pages"], x["threads"]) for x in result["pages"]["runs"]] == [
        (pages, threads) for threads in (1, 2)
        for pages in ("small", "huge")]
    assert all(x["huge"] == 0 for x in result["pages"]["runs"]
               if x["pages"] == "small")


def test_tables_of_results(result):
    text = load_plots.tables(result, plot.markdown)
    for name in WAYS:
        assert f"| {load_plots.LABELS[name]} |" in text
    assert all(line.endswith("|") for line in text.splitlines()
               if line.startswith("|"))


def test_svg(result, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    plot.PLOTS["load"](result, tmp_path / "load.svg")
    assert (tmp_path / "load.svg").read_text().rstrip().endswith("</svg>")


@pytest.mark.parametrize("readers", [1, 3, 8])
def test_readers_share_the_files(tmp_path, readers):
    """Each block is read once."""
    files = []
    for name, size in ("a", 10 << 20), ("b", (3 << 20) + 5):
        (tmp_path / name).write_bytes(bytes(size))
        files.append(tmp_path / name)
    blocks = [(name, at) for _, name, begin, count in
              drive.ranges(files, readers, 1 << 20)
              for at in range(begin, begin + count)]
    assert sorted(blocks) == [(name, at) for name, count in
                              zip(files, (10, 3)) for at in range(count)]


def test_the_fastest_of_each_tool_stays(monkeypatch):
    monkeypatch.setattr(drive.shutil, "which", lambda name: None)
    found = drive.Drive("model", ["file"], "probe")
    rates = {("dd", 4, "4M"): 5, ("raw", 16): 3}
    monkeypatch.setattr(found, "read", lambda x: rates.get(x, 1))
    pauses = []
    assert found.find(lambda: pauses.append(1)) == 5
    assert len(pauses) == len(drive.DD) + len(drive.RAW)
    assert sorted(found.settings) == sorted(rates)
    rates["raw", 16] = 9
    assert found.limit() == {"dd": 5, "raw": 9}


def test_share_is_of_the_tool_that_is_faster():
    limits = [{"dd": 4, "raw": 8}, {"dd": 16, "raw": 10}, {"dd": 4, "raw": 10}]
    assert drive.share([4, 8, 5], limits) == 0.5  # of 8, 10 and 10
    assert drive.fastest(limits) == "raw"


def test_dd_where_there_is_no_fio(tmp_path):
    (tmp_path / "file").write_bytes(bytes(20 << 20))
    try:
        assert drive.run_dd([tmp_path / "file"], 4, "4M") > 0
    except SystemExit:
        pytest.skip("the temporary directory has no direct reads")
