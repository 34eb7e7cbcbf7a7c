# SPDX-License-Identifier: Apache-2.0
"""publish.pml in every order of its steps; and each fault that it knows is
found."""
import pathlib
import re
import shutil
import subprocess

import pytest

MODEL = pathlib.Path(__file__).with_name("publish.pml")
DEADLINE = 900


def check(tmp_path, **defines):
    """Errors found, states visited, and what was violated."""
    if not shutil.which("spin"):
        pytest.skip("spin is not installed (make deps)")
    options = [f"-D{name}={value}" for name, value in defines.items()]
    subprocess.run(["spin", *options, "-a", MODEL], cwd=tmp_path, check=True,
                   stdout=subprocess.DEVNULL, timeout=DEADLINE)
    subprocess.run(["gcc", "-O1", "-w", "-DSAFETY", "-DCOLLAPSE", "-o", "pan",
                    "pan.c"], cwd=tmp_path, check=True, timeout=DEADLINE)
    out = subprocess.run(["./pan", "-m300000"], cwd=tmp_path, check=True,
                         capture_output=True, text=True,
                         timeout=DEADLINE).stdout
    errors = int(re.search(r"errors: (\d+)", out).group(1))
    states = int(float(re.search(r"([\d.e+]+) states, stored",
                                 out).group(1)))
    assert "max search depth too small" not in out, out
    violated = re.search(r"assertion violated (.*) \(at depth", out)
    assert bool(violated) == bool(errors), out
    return errors, states, violated and violated.group(1)


def test_two_clients(tmp_path):
    errors, states, violated = check(tmp_path)
    assert errors == 0, violated
    assert states > 1000000


def test_taken_back(tmp_path):
    """One client: with two it takes minutes, and gigabytes."""
    errors, states, violated = check(tmp_path, CLIENTS=1, BACK=1)
    assert errors == 0, violated
    assert states > 10000


@pytest.mark.parametrize("mutant, violated", [
    (1, "memory["), (2, "memory[current]"), (3, "memory[queued"), (4, "id=="),
    (5, "held[c]==first"), (6, "killed["), (7, "published"), (8, "id=="),
    (9, "id=="), (10, "id=="), (11, "g!=0")])
def test_fault_is_found(tmp_path, mutant, violated):
    assert violated in check(tmp_path, MUTANT=mutant)[2]


@pytest.mark.parametrize("mutant", [4, 8, 9, 10])
def test_mixture_is_found_when_taken_back(tmp_path, mutant):
    """Where a number that was shown before is shown again."""
    assert "id==" in check(tmp_path, CLIENTS=1, BACK=1, MUTANT=mutant)[2]
