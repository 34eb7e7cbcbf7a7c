# SPDX-License-Identifier: Apache-2.0
"""Gate and sequence-parallel rows against their meaning, written with lists
and Python's doubles, on random shapes and strides."""
import ctypes
import math
import random

import numpy as np

from kernels_lib import I64, P, U32, seeds, structure

F32 = ctypes.c_float
GateArgs = structure(
    "GateArgs", (I64, "num_tokens"), (U32, "hc_mult dim"), (P, "hidden"),
    (I64 * 3, "hidden_stride"), (P, "kv"), (I64 * 2, "kv_stride"),
    (I64, "num_kv_tokens"), (P, "q_weight k_weight"),
    (I64 * 2, "q_stride k_stride"), (P, "token_mask"), (I64, "mask_stride"),
    (F32, "eps clamp"), (I64 * 3, "out_stride"))
SpRowsArgs = structure(
    "SpRowsArgs", (P, "gathered"), (I64, "num_tokens"),
    (U32, "tp_size tp_rank local_heads total_heads dim"))


def value_of(bits):
    """bf16 -> doubles, any shape."""
    wide = np.asarray(bits).astype(np.uint32) << 16
    return wide.view(np.float32).astype(float).tolist()


def gate_row(h, q, k, key, value, active, eps, clamp):
    """One token's copy; key and value are None past the last of them."""
    if key is None or not active:
        return list(h)
    dim = len(h)

    def rms(x):
        return 1 / math.sqrt(sum(v * v for v in x) / dim + eps)

    dot = sum(a * b * c * d for a, b, c, d in zip(h, q, k, key))
    dot *= rms(h) * rms(key) / math.sqrt(dim)
    root = math.copysign(math.sqrt(max(abs(dot), clamp)),
                         -1 if dot < 0 else 1)
    gate = 1 / (1 + math.exp(-root))
    return [a + gate * v for a, v in zip(h, value)]


class Array:
    """Random bf16 in memory with gaps, its axes in any order."""

    def __init__(self, rng, shape, scale):
        order = list(range(len(shape)))
        rng.shuffle(order)
        gaps = [rng.randint(1, 3) for _ in shape]
        memory = np.full([shape[axis] * gaps[axis] for axis in order], 0x7fc0,
                         np.uint16)
        view = memory.transpose(np.argsort(order))
        view = view[tuple(slice(None, None, gap) for gap in gaps)]
        self.view = view[tuple(slice(None, None, rng.choice([1, -1]))
                               for _ in shape)]
        draw = np.random.default_rng(rng.randrange(2**32))
        values = draw.normal(0, scale, shape).astype(np.float32)
        self.view[:] = (values.view(np.uint32) >> 16).astype(np.uint16)
        self.address = self.view.ctypes.data
        self.strides = [s // 2 for s in self.view.strides]


def ulp(value):
    """The step of bf16 at a value."""
    exponent = math.frexp(value)[1] - 1 if value else -126
    return 2.0**(max(exponent, -126) - 7)


def check_gate(kernels, seed):
    rng = random.Random(seed)
    tokens, hc = rng.randint(0, 4), rng.randint(1, 8)
    dim = rng.choice([1, 2, 7, 8, 63, 64, 65, 128, rng.randint(1, 300), 257])
    kv_tokens = rng.choice([tokens, tokens, rng.randint(0, tokens),
                            tokens + 2])
    hidden = Array(rng, (tokens, hc, dim), 10.0**rng.randint(-9, 3))
    kv = Array(rng, (kv_tokens, (hc + 1) * dim), 10.0**rng.randint(-9, 3))
    q, k = (Array(rng, (hc, dim), 1) for _ in range(2))
    mask = [rng.choice([0, 1, 2, 255]) for _ in range(kv_tokens)]
    mask_bytes = np.array([x for byte in mask for x in (byte, 7)], np.uint8)
    masked = rng.random() < 0.5
    eps = rng.choice([1e-20, 1e-6, 0.1])
    clamp = rng.choice([1e-6, 1e-6, 0.5])
    in_place = rng.random() < 0.3
    out = hidden if in_place else Array(rng, (tokens, hc, dim), 1)
    h, q_list, k_list, kv_list = (value_of(x.view) for x in (hidden, q, k, kv))
    args = GateArgs(
        tokens, hc, dim, hidden.address, (I64 * 3)(*hidden.strides),
        kv.address, (I64 * 2)(*kv.strides), kv_tokens, q.address, k.address,
        (I64 * 2)(*q.strides), (I64 * 2)(*k.strides),
        mask_bytes.ctypes.data if masked else None, 2, eps, clamp,
        (I64 * 3)(*out.strides))
    assert kernels.engram_cpu_gate(ctypes.byref(args), P(out.address),
                                   None) == 0
    got = value_of(out.view)
    for t in range(tokens):
        for c in range(hc):
            key = value = None
            if t < kv_tokens:
                key = kv_list[t][c * dim:(c + 1) * dim]
                value = kv_list[t][hc * dim:]
            active = not masked or t < kv_tokens and mask[t] != 0
            want = gate_row(h[t][c], q_list[c], k_list[c], key, value, active,
                            F32(eps).value, F32(clamp).value)
            for d in range(dim):
                near = ulp(max(abs(want[d]), abs(h[t][c][d])))
                assert abs(got[t][c][d] - want[d]) <= near, (
                    seed, t, c, d, got[t][c][d], want[d])


def test_gate(kernels, isa):
    for seed in seeds(60):
        check_gate(kernels, seed)


def check_sp_rows(kernels, seed):
    rng = random.Random(seed)
    size, heads = rng.randint(1, 9), rng.randint(1, 24)
    tokens, dim = rng.randint(0, 20), rng.choice([1, 3, 32, 50])
    local = -(-heads // size)
    chunk = -(-tokens // size)

    def row(token, head):
        return [(token * 1009 + head * 31 + d) % 65536 for d in range(dim)]

    padding = [0xdead] * dim
    gathered = [row(token, head) if head < heads else padding
                for rank in range(size) for token in range(tokens)
                for head in range(rank * local, (rank + 1) * local)]
    data = np.array(gathered, np.uint16)
    for rank in range(size):
        args = SpRowsArgs(data.ctypes.data, tokens, size, rank, local, heads,
                          dim)
        out = np.full((chunk * heads + 1, dim), 0xa5a5, np.uint16)
        assert kernels.engram_cpu_sp_rows(ctypes.byref(args),
                                          P(out.ctypes.data), None) == 0
        want = [row(token, head) if token < tokens else [0] * dim
                for token in range(rank * chunk, (rank + 1) * chunk)
                for head in range(heads)]
        assert out[:-1].tolist() == want, (seed, rank)
        assert out[-1].tolist() == [0xa5a5] * dim, (seed, rank)


def test_sp_rows(kernels):
    for seed in seeds(60):
        check_sp_rows(kernels, seed)
