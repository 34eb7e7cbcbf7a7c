# SPDX-License-Identifier: Apache-2.0
"""What make notices of an old build directory."""
import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("first_line", [
    "obj/k/a.o: {} b.h\n",
    "obj/k/a.o : {} \\\n    b.h\n",
    "obj/k/a.o: \\\n {} b.h\n",
    "obj/k/a.o: {}\n",
])
@pytest.mark.parametrize("there", [True, False])
def test_objects_without_a_source_go(tmp_path, first_line, there):
    folder = tmp_path / "obj" / "k"
    folder.mkdir(parents=True)
    source = "a.cu" if there else "gone.cu"
    (tmp_path / "a.cu").touch()
    (folder / "a.o").touch()
    (folder / "a.d").write_text(first_line.format(tmp_path / source))
    subprocess.run(["sh", str(ROOT / "config/stale.sh"), str(tmp_path)],
                   check=True)
    assert (folder / "a.o").exists() == there
    assert (folder / "a.d").exists() == there


def stamp(build, **variables):
    """That of the flags of kernels, and when it was written."""
    file = build / "obj" / "cuda-flags"
    env = {key: value for key, value in os.environ.items()
           if key not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    subprocess.run(["make", f"B={build}", str(file),
                    *(f"{key}={value}" for key, value in variables.items())],
                   cwd=ROOT, env=env, check=True, stdout=subprocess.DEVNULL)
    return file.read_text(), file.stat().st_mtime_ns


def test_kernels_depend_on_their_flags(tmp_path):
    first = stamp(tmp_path, CUDA_ARCHS="90")
    assert stamp(tmp_path, CUDA_ARCHS="90") == first
    second = stamp(tmp_path, CUDA_ARCHS="80 90")
    assert second != first
    assert "code=sm_80" in second[0] and "code=sm_80" not in first[0]
