# SPDX-License-Identifier: Apache-2.0
"""The kernels as a shared object, loaded with ctypes."""
import ctypes
import os
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def kernels():
    build = os.environ.get("ENGRAM_BUILD", "build")
    path = ROOT / build / "tests/libkernels_test.so"
    if not path.exists():
        pytest.fail(f"{path} is not there: run "
                    "`make build/tests/libkernels_test.so`")
    return ctypes.CDLL(str(path))
