# SPDX-License-Identifier: Apache-2.0
"""Geometry against NumPy and against the resolved layouts of real models."""
import ctypes
import json

import numpy as np
import pytest

from kernels_lib import ROOT

GOLDEN = ROOT / "tests/golden"
INT64_MAX = 2**63 - 1


class Config(ctypes.Structure):
    _fields_ = [("num_layers", ctypes.c_uint32),
                ("layer_ids", ctypes.POINTER(ctypes.c_int32)),
                ("max_ngram", ctypes.c_uint32),
                ("num_heads", ctypes.c_uint32),
                ("vocab_size", ctypes.c_uint32),
                ("compressed_vocab_size", ctypes.c_uint32),
                ("min_ngram", ctypes.c_uint32),
                ("primes", ctypes.POINTER(ctypes.c_int64)),
                ("multipliers", ctypes.POINTER(ctypes.c_int64))]


class Geometry(ctypes.Structure):
    _fields_ = [("num_layers", ctypes.c_uint32),
                ("max_ngram", ctypes.c_uint32),
                ("num_heads", ctypes.c_uint32),
                ("num_cols", ctypes.c_uint32),
                ("layer_ids", ctypes.POINTER(ctypes.c_int32)),
                ("primes", ctypes.POINTER(ctypes.c_int64)),
                ("offsets", ctypes.POINTER(ctypes.c_int64)),
                ("multipliers", ctypes.POINTER(ctypes.c_int64)),
                ("rows", ctypes.POINTER(ctypes.c_int64)),
                ("min_ngram", ctypes.c_uint32)]


def derive(kernels, layer_ids, max_ngram, heads, vocab, compressed):
    ids = (ctypes.c_int32 * len(layer_ids))(*layer_ids)
    config = Config(len(layer_ids), ids, max_ngram, heads, vocab, compressed)
    out = ctypes.POINTER(Geometry)()
    status = kernels.engram_geometry_derive(ctypes.byref(config),
                                            ctypes.byref(out), None)
    assert status == 0
    g = out.contents
    layers, cols = g.num_layers, g.num_cols

    def array(pointer, *shape):
        return np.ctypeslib.as_array(pointer, shape).copy()

    got = {"primes": array(g.primes, layers, g.max_ngram - 1, g.num_heads),
           "offsets": array(g.offsets, layers, cols),
           "multipliers": array(g.multipliers, layers, g.max_ngram),
           "rows": array(g.rows, layers)}
    kernels.engram_geometry_free(out)
    return got


def check_layout(got, layout):
    for key in ("primes", "offsets", "multipliers", "rows"):
        if key in layout:
            assert got[key].tolist() == layout[key], key


def integers(kernels, seed, bound, count):
    out = np.empty(count, np.int64)
    kernels.engram_numpy_integers(
        ctypes.c_uint64(seed), ctypes.c_uint64(bound), ctypes.c_uint32(count),
        out.ctypes.data_as(ctypes.c_void_p))
    return out


BOUNDS = ([1, 2, 3, 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1, 2**32,
           2**32 + 1, 2**33, 3 * 2**61, 2**62 + 1, 2**63 - 1]
          + [INT64_MAX // v // 2 for v in (7, 99092, 101318, 129280)])


@pytest.mark.parametrize("bound", BOUNDS)
def test_integers_equal_numpy(kernels, bound):
    seeds = ([10007 * layer for layer in range(70)]
             + [2**32 - 1, 2**32, 2**64 - 1, 10007 * (2**31 - 1)])
    for seed in seeds:
        want = np.random.default_rng(seed).integers(0, bound, 17, np.int64)
        assert integers(kernels, seed, bound, 17).tolist() == want.tolist()


def test_integers_equal_numpy_at_random(kernels):
    draw = np.random.default_rng(1)
    for _ in range(3000):
        seed = int(draw.integers(0, 2**64, dtype=np.uint64)
                   >> np.uint64(draw.integers(0, 64)))
        bound = max(1, int(draw.integers(0, 2**63)) >> int(draw.integers(63)))
        want = np.random.default_rng(seed).integers(0, bound, 9, np.int64)
        assert integers(kernels, seed, bound, 9).tolist() == want.tolist(), (
            seed, bound)


def test_golden_layouts(kernels):
    layouts = json.loads((GOLDEN / "layouts.json").read_text())
    assert layouts
    for layout in layouts:
        check_layout(derive(kernels, layout["engram_layer_ids"],
                            layout["engram_max_ngram_size"],
                            layout["engram_n_heads"],
                            layout["engram_vocab_size"],
                            layout["engram_compressed_vocab_size"]), layout)


def test_released_model(kernels):
    path = GOLDEN / "deepseek_v41_flash_layout.json"
    check_layout(derive(kernels, [1, 14], 4, 8, 16000000, 99092),
                 json.loads(path.read_text()))


def test_primes_equal_a_sieve(kernels):
    n = 200000
    sieve = np.ones(n, bool)
    sieve[:2] = False
    for i in range(2, int(n**0.5) + 1):
        if sieve[i]:
            sieve[i * i::i] = False
    got = [kernels.engram_is_prime(ctypes.c_uint32(i)) for i in range(n)]
    assert got == sieve.astype(int).tolist()
