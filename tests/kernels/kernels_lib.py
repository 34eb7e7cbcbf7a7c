# SPDX-License-Identifier: Apache-2.0
"""The kernels as a shared object, loaded with ctypes.

ENGRAM_PROPERTY_SEED and ENGRAM_PROPERTY_CASES choose the random cases: the
first seed, and how many for each test.  A failure names the seed.

ENGRAM_KERNELS_LIB is another object to test: with libkernels_gpu_test.so the
kernels run on the GPU (tests/gpu), and places of the rows take the place of
the instruction sets.
"""
import ctypes
import os
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
P = ctypes.c_void_p
I64 = ctypes.c_int64
U32 = ctypes.c_uint32
LIB = os.environ.get("ENGRAM_KERNELS_LIB")
ISAS = ({"device": 1, "registered": 2, "descriptor": 3} if LIB else
        {"scalar": 1, "avx2": 2, "avx512": 3})
SEED = int(os.environ.get("ENGRAM_PROPERTY_SEED", "0"))
CASES = os.environ.get("ENGRAM_PROPERTY_CASES")


class OnGpu:
    """The shim's functions by the names of those they stand for."""

    def __init__(self, lib):
        self.lib = lib

    def __getattr__(self, name):
        return getattr(self.lib, name.replace("engram_cpu_", "engram_shim_"))


def load():
    """The object under test; skips when it is for a GPU that is not there."""
    build = os.environ.get("ENGRAM_BUILD", "build")
    path = pathlib.Path(LIB) if LIB else ROOT / build / "tests" \
        / "libkernels_test.so"
    if not path.exists():
        pytest.fail(f"{path} is not there: run `make {build}/tests/"
                    f"{'gpu/' if LIB else ''}{path.name}`")
    lib = ctypes.CDLL(str(path))
    if not LIB:
        return lib
    lib.engram_shim_no_device.restype = ctypes.c_char_p
    why = lib.engram_shim_no_device()
    if why:
        pytest.skip(f"no CUDA device: {why.decode()}")
    return OnGpu(lib)


def seeds(default):
    """Seeds of the random cases, `default` of them unless the user says."""
    return range(SEED, SEED + int(CASES or default))


def structure(name, *fields):
    """A ctypes.Structure of (type, "names") pairs."""
    return type(name, (ctypes.Structure,), {"_fields_": [
        (field, kind) for kind, names in fields for field in names.split()]})
