# SPDX-License-Identifier: Apache-2.0
import pytest

from kernels_lib import CASES, ISAS, SEED, load


def pytest_report_header():
    return f"ENGRAM_PROPERTY_SEED={SEED} ENGRAM_PROPERTY_CASES={CASES or ''}"


@pytest.fixture(scope="session")
def kernels():
    return load()


@pytest.fixture(params=ISAS)
def isa(request, kernels):
    if kernels.engram_cpu_set_isa(ISAS[request.param]):
        pytest.skip(f"this processor has no {request.param}")
    yield request.param
    kernels.engram_cpu_set_isa(0)
