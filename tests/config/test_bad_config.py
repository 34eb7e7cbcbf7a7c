# SPDX-License-Identifier: Apache-2.0
"""Each folder of tests/bad/config is a configuration that must be refused:
engramd.json, and `expected`, the error with all of its fields.

After a change of wording, ENGRAM_UPDATE=1 writes `expected` afresh; read the
difference before committing it.
"""
import os
import pathlib
import subprocess

import pytest

BUILD = pathlib.Path(os.environ.get("ENGRAM_BUILD", "build")).resolve()
CASES = pathlib.Path(__file__).parent.parent / "bad" / "config"


def probe(case):
    return subprocess.run([BUILD / "tests" / "config_probe", "engramd.json"],
                          cwd=case, capture_output=True, check=False,
                          timeout=60)


@pytest.mark.parametrize("case", sorted(CASES.iterdir()),
                         ids=lambda case: case.name)
def test_refused(case):
    run = probe(case)
    expected = case / "expected"
    if os.environ.get("ENGRAM_UPDATE"):
        expected.write_bytes(run.stdout)
    assert run.stderr == b""
    assert run.stdout.decode() == expected.read_text()
    assert run.returncode == 1


def test_there_are_cases():
    assert len(list(CASES.iterdir())) >= 60


def test_missing_file(tmp_path):
    run = probe(tmp_path)
    assert run.returncode == 1
    assert "engramd.json" in run.stdout.decode()


def test_daemon_refuses_likewise():
    """engramd --check says what the probe says."""
    case = CASES / "layout_unknown"
    run = subprocess.run([BUILD / "bin" / "engramd", "--check", "-c",
                          "engramd.json"], cwd=case, capture_output=True,
                         text=True, check=False, timeout=60)
    lines = dict(line.split(": ", 1)
                 for line in (case / "expected").read_text().splitlines())
    assert run.returncode != 0
    assert lines["message"] in run.stderr
    assert lines["fix"] in run.stderr
