# SPDX-License-Identifier: Apache-2.0
import ctypes
import os

import pytest

from kernels_lib import CASES, ISAS, ROOT, SEED


def pytest_report_header():
    return f"ENGRAM_PROPERTY_SEED={SEED} ENGRAM_PROPERTY_CASES={CASES or ''}"


@pytest.fixture(scope="session")
def kernels():
    build = os.environ.get("ENGRAM_BUILD", "build")
    path = ROOT / build / "tests/libkernels_test.so"
    if not path.exists():
        pytest.fail(f"{path} is not there: run "
                    "`make build/tests/libkernels_test.so`")
    return ctypes.CDLL(str(path))


@pytest.fixture(params=ISAS)
def isa(request, kernels):
    if kernels.engram_cpu_set_isa(ISAS[request.param]):
        pytest.skip(f"this processor has no {request.param}")
    yield request.param
    kernels.engram_cpu_set_isa(0)
