# SPDX-License-Identifier: Apache-2.0
"""libengram_cuda.so through ctypes, for the benchmarks.

Structures are those of the Python client.  Pointers are plain addresses:
tensor.data_ptr().  The calls go to torch's current stream.
"""
import ctypes
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "clients" / "python"))
# pylint: disable=wrong-import-position,unused-import
from engram_client._abi import (  # noqa: E402,F401
    BACKGROUND, FOREGROUND, FP8_E4M3, SCALE_UE8M0, Descriptor, Error, GateArgs,
    Grid, HashBatch, HashParams, LookupArgs, Rows, Source, Step)

P = ctypes.c_void_p
INT = ctypes.c_int
I64 = ctypes.c_int64


class EngramError(RuntimeError):
    """Status, message and fix of a call that failed."""


def _load(path):
    path = pathlib.Path(path).resolve()
    if not path.exists():
        raise EngramError(f"{path} is not there: build it with `make` on a "
                          "machine with nvcc, or give --lib")
    # What it may depend on lies beside it and in no search path.
    for beside in sorted(path.parent.glob("libengram.so.*")):
        ctypes.CDLL(str(beside), mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(path))


class Library:
    """The kernels.  A failed call raises EngramError."""

    def __init__(self, path):
        self.path = str(path)
        self._so = _load(path)
        self._error = Error()
        self._hash = self._function("hash", 6)
        self._lookup = self._function("lookup", 6)
        self._gate = self._function("gate", 4)
        self._hash_lookup = self._function("hash_lookup", 6)

    def _function(self, name, arguments):
        function = getattr(self._so, "engram_cuda_" + name)
        function.argtypes = [P] * arguments
        function.restype = INT
        return function

    def _call(self, function, *args):
        import torch

        args = [ctypes.addressof(a) if isinstance(a, ctypes.Structure) else a
                for a in args]
        status = function(*args, torch.cuda.current_stream().cuda_stream,
                          ctypes.addressof(self._error))
        if status:
            raise EngramError(
                f"status {status}: {self._error.message.decode()}; "
                f"{self._error.fix.decode()}")

    def hash(self, params, batch, out, rejects=None):
        self._call(self._hash, params, batch, out, rejects)

    def lookup(self, source, args, out, grid=None):
        self._call(self._lookup, source, args, out, grid)

    def hash_lookup(self, params, batch, step, grid=None):
        self._call(self._hash_lookup, params, batch, step, grid)

    def gate(self, args, out):
        self._call(self._gate, args, out)
