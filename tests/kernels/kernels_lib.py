# SPDX-License-Identifier: Apache-2.0
"""The kernels as a shared object, loaded with ctypes.

ENGRAM_PROPERTY_SEED and ENGRAM_PROPERTY_CASES choose the random cases: the
first seed, and how many for each test.  A failure names the seed.
"""
import ctypes
import os
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
P = ctypes.c_void_p
I64 = ctypes.c_int64
U32 = ctypes.c_uint32
ISAS = {"scalar": 1, "avx2": 2, "avx512": 3}
SEED = int(os.environ.get("ENGRAM_PROPERTY_SEED", "0"))
CASES = os.environ.get("ENGRAM_PROPERTY_CASES")


def seeds(default):
    """Seeds of the random cases, `default` of them unless the user says."""
    return range(SEED, SEED + int(CASES or default))


def structure(name, *fields):
    """A ctypes.Structure of (type, "names") pairs."""
    return type(name, (ctypes.Structure,), {"_fields_": [
        (field, kind) for kind, names in fields for field in names.split()]})
