# SPDX-License-Identifier: Apache-2.0
"""The kernels as a shared object, loaded with ctypes."""
import ctypes
import os
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def kernels():
    path = os.environ.get("ENGRAM_KERNELS_SO",
                          ROOT / "build/tests/libkernels_test.so")
    if not os.path.exists(path):
        pytest.fail(f"{path} is not there: build it with `make {path}`")
    return ctypes.CDLL(str(path))
