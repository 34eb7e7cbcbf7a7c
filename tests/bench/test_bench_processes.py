# SPDX-License-Identifier: Apache-2.0
"""bench_processes.py and bench_python.py from end to end on the CPU: what is
measured is what they say, whatever the figures."""
import json
import pathlib
import subprocess
import sys

import pytest

import plot

HERE = pathlib.Path(__file__).resolve().parent


def bench(directory, name, *options):
    out = directory / f"{name}.json"
    done = subprocess.run(
        [sys.executable, HERE / f"bench_{name}.py", "--device", "cpu",
         "--quick", "--out", out, *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(out.read_text())


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    directory = tmp_path_factory.mktemp("processes")
    found = bench(directory, "processes", "--gib", "0.06", "--processes", "1",
                  "3", "--dir", directory)
    assert [path.name for path in directory.iterdir()] == ["processes.json"]
    return found


def test_copies_add_up_and_shares_do_not(processes):
    table = processes["table_bytes"]
    assert table == pytest.approx(0.06 * 2**30, rel=0.1)
    for one in processes["processes"]:
        # two processes of anything else in the machine differ by less
        slack = 24 << 20
        assert one["own"]["pss_bytes"] == pytest.approx(
            one["processes"] * table, abs=slack)
        assert one["attached"]["pss_bytes"] == pytest.approx(table, abs=slack)
        assert len(one["attached"]["seconds_each"]) == one["processes"]


def test_ratios(processes):
    for one in processes["processes"]:
        assert one["ratios"]["pss"] == \
            one["own"]["pss_bytes"] / one["attached"]["pss_bytes"]
        assert one["ratios"]["time_with_load"] < one["ratios"]["time"]


def test_table_of_results(processes):
    text = plot.TABLES["processes"](processes)
    assert text.count("\n| ") == 2 + len(processes["processes"]) - 1
    assert "engramd loads it once" in text


def test_calls(tmp_path):
    found = bench(tmp_path, "python", "--rounds", "2")
    assert [one["call"] for one in found["calls"]] == ["lookup", "hash",
                                                       "gate"]
    for one in found["calls"]:
        assert one["python_us"] - one["c_us"] == one["overhead_us"]
    assert plot.TABLES["python"](found).count("\n| ") == 4
