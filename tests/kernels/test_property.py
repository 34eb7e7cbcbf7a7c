# SPDX-License-Identifier: Apache-2.0
"""Random tables and batches: every instruction set against slow models."""
import ctypes
import random

import numpy as np
import pytest

import hash_model
from kernels_lib import I64, P, U32, seeds, structure
from hash_model import DEAD, Request

HashParams = structure(
    "HashParams", (U32, "num_layers min_ngram max_ngram num_heads"),
    (P, "multipliers primes offsets token_map"), (I64, "token_map_len"),
    (ctypes.c_int32, "pad_id"), (U32, "num_cuts"),
    (ctypes.c_int32 * 8, "cut_ids"))
HashBatch = structure(
    "HashBatch", (I64, "num_tokens"), (P, "input_ids"), (I64, "input_stride"),
    (P, "dead_mask"), (I64, "dead_stride"), (P, "positions"),
    (I64, "position_stride"), (P, "query_start_loc"), (I64, "query_stride"),
    (I64, "num_requests"), (P, "lookback_ids"),
    (I64, "lookback_row_stride lookback_col_stride"), (P, "lookback_dead"),
    (I64, "lookback_dead_row_stride lookback_dead_col_stride"),
    (I64, "lookback_depth"), (P, "slot_cache"), (I64, "num_slots"),
    (P, "slot_mapping"), (I64, "slot_stride"), (P, "block_table"),
    (I64, "block_row_stride block_col_stride num_block_rows max_blocks"),
    (I64, "block_size"))
Rows = structure(
    "Rows", (P, "codes scales"), (I64, "code_stride_bytes"),
    (I64, "scale_stride_bytes row_begin row_end"),
    (U32, "dtype scale_scheme dim block_size"), (ctypes.c_float, "scale"))
LookupArgs = structure(
    "LookupArgs", (P, "ids"), (I64, "ids_token_stride ids_head_stride"),
    (I64, "num_tokens"), (U32, "head_begin local_heads total_heads"),
    (P, "misses"))


def pointers(rows):
    return (P * len(rows))(*(row.ctypes.data for row in rows))


class Table:
    """A random geometry; primes need not be primes to be divisors."""

    def __init__(self, rng):
        self.layers = rng.randint(1, 3)
        self.ngram = rng.randint(2, 6)
        self.heads = rng.choice([1, 2, 3, 5, 8, 11, 16])
        self.vocab = rng.randint(2, 400)
        compressed = rng.randint(1, self.vocab)
        self.map = [rng.randrange(compressed) for _ in range(self.vocab)]
        self.pad = rng.randrange(compressed)
        self.cuts = [rng.randrange(compressed) for _ in
                     range(rng.choice([0, 0, 1, 2, 8]))]
        cols = (self.ngram - 1) * self.heads
        bound = (2**63 - 1) // compressed
        top = rng.choice([3, 1000, 2**24, 2**31 - 1])
        self.multipliers = [np.array(
            [rng.randrange(1, bound + 1) for _ in range(self.ngram)], np.int64)
            for _ in range(self.layers)]
        self.primes = [np.array([rng.randint(1, top) for _ in range(cols)],
                                np.int64) for _ in range(self.layers)]
        self.offsets = [np.array([rng.randrange(0, 2**31 - top)
                                  for _ in range(cols)], np.int64)
                        for _ in range(self.layers)]

    def params(self, keep):
        arrays = [pointers(x) for x in
                  (self.multipliers, self.primes, self.offsets)]
        token_map = np.array(self.map, np.int32)
        keep += arrays + [token_map]
        return HashParams(
            self.layers, 2, self.ngram, self.heads,
            *(ctypes.addressof(x) for x in arrays), token_map.ctypes.data,
            self.vocab, self.pad, len(self.cuts),
            (ctypes.c_int32 * 8)(*self.cuts))

    def model(self, requests):
        shape = self.ngram - 1, self.heads
        layers = [(m.tolist(), p.reshape(shape).tolist(),
                   o.reshape(shape).tolist()) for m, p, o in
                  zip(self.multipliers, self.primes, self.offsets)]
        return [[hash_model.hash_token(r, i, layer, self.map, self.pad,
                                       self.cuts)
                 for layer in layers]
                for r in requests for i in range(len(r.ids))]


def random_requests(rng, table, cached):
    requests = []
    depth = table.ngram - 1
    for _ in range(rng.randint(1, 6)):
        count = rng.choice([0, 1, 1, 2, 5, 40])
        start = rng.choice([0, 0, 1, 2, 3, 20])

        def token():
            return rng.randrange(table.vocab)

        request = Request(
            start, [token() for _ in range(count)],
            [rng.random() < 0.15 for _ in range(count)],
            [rng.choice([-1, token(), token()]) for _ in range(depth)],
            [rng.random() < 0.15 for _ in range(depth)])
        if cached:
            request.cached = [rng.choice([DEAD, rng.choice(table.map)])
                              for _ in range(start)]
        requests.append(request)
    return requests


class Batch:
    """Requests flattened, in arrays with gaps between the elements."""

    def __init__(self, rng, table, requests):
        self.keep = []
        self.block = rng.randint(1, 5)
        stride = rng.randint(1, 3)
        ids = [x for r in requests for x in r.ids]
        bounds = np.cumsum([0] + [len(r.ids) for r in requests])
        self.batch = b = HashBatch(num_tokens=len(ids))
        b.num_requests = len(requests)
        b.lookback_depth = table.ngram - 1
        self.put("input_ids", "input_stride", ids, np.int32, stride)
        self.put("dead_mask", "dead_stride",
                 [x for r in requests for x in r.dead], np.uint8, stride)
        self.put("positions", "position_stride",
                 [r.start + i for r in requests for i in range(len(r.ids))],
                 np.int64, stride)
        self.put("query_start_loc", "query_stride", bounds, np.int32, stride)
        for name, dtype, rows in (
                ("ids", np.int32, [r.window for r in requests]),
                ("dead", np.uint8, [r.window_dead for r in requests])):
            array = np.array(rows, dtype).T.copy()  # columns first
            self.keep.append(array)
            prefix = "lookback_dead_" if name == "dead" else "lookback_"
            setattr(b, "lookback_" + name, array.ctypes.data)
            setattr(b, prefix + "row_stride", 1)
            setattr(b, prefix + "col_stride", len(rows))
        if requests[0].cached is not None:
            self.put_cache(rng, requests)

    def put(self, name, stride_name, values, dtype, stride):
        array = np.full(len(values) * stride + 1, 127, dtype)
        array[:len(values) * stride:stride] = values
        self.keep.append(array)
        setattr(self.batch, name, array.ctypes.data)
        setattr(self.batch, stride_name, stride)

    def put_cache(self, rng, requests):
        b, size = self.batch, self.block
        need = max(r.start + len(r.ids) for r in requests)
        per_request = -(-need // size) or 1
        blocks = list(range(per_request * len(requests)))
        rng.shuffle(blocks)
        table = np.array(blocks, np.int32).reshape(-1, per_request)
        self.cache = np.full(len(blocks) * size, 3, np.int32)
        slots = []
        for r, row in zip(requests, table.tolist()):
            place = [row[p // size] * size + p % size
                     for p in range(r.start + len(r.ids))]
            self.cache[place[:r.start]] = r.cached
            slots += [rng.choice([s, -1]) for s in place[r.start:]]
        self.keep += [table, self.cache]
        self.slots = slots
        self.put("slot_mapping", "slot_stride", slots, np.int64, 2)
        b.slot_cache = self.cache.ctypes.data
        b.num_slots = len(self.cache)
        b.block_table = table.ctypes.data
        b.block_row_stride, b.block_col_stride = per_request, 1
        b.num_block_rows, b.max_blocks = table.shape
        b.block_size = size


@pytest.mark.parametrize("cached", [False, True])
def test_hash(kernels, isa, cached):
    for seed in seeds(120):
        rng = random.Random(seed)
        table = Table(rng)
        requests = random_requests(rng, table, cached)
        batch = Batch(rng, table, requests)
        params = table.params(batch.keep)
        want = np.array(table.model(requests), np.int64)
        out = np.full(want.shape, -9, np.int32)
        if cached:
            after = batch.cache.copy()
            sources = [DEAD if dead else table.map[token] for r in requests
                       for token, dead in zip(r.ids, r.dead)]
            for slot, value in zip(batch.slots, sources):
                if slot >= 0:
                    after[slot] = value
            assert kernels.engram_cpu_write_slots(
                ctypes.byref(params), ctypes.byref(batch.batch), None) == 0
            assert batch.cache.tolist() == after.tolist(), seed
        assert kernels.engram_cpu_hash(
            ctypes.byref(params), ctypes.byref(batch.batch),
            P(out.ctypes.data), None) == 0, seed
        assert out.tolist() == want.tolist(), seed


def e4m3(code):
    sign, rest = (-1 if code & 128 else 1), code & 127
    if rest == 127:
        return float("nan")
    exponent, mantissa = rest >> 3, rest & 7
    if exponent:
        return sign * (8 + mantissa) * 2.0**(exponent - 10)
    return sign * (mantissa * 2.0**-9)


def to_bf16(value):
    bits = value.astype(np.float32).view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(value), 0x7fff, rounded).astype(np.uint16)


def test_lookup(kernels, isa):
    values = np.array([e4m3(code) for code in range(256)])
    exponents = np.arange(256) << 23
    factors = exponents.astype(np.uint32).view(np.float32).astype(np.float64)
    for seed in seeds(60):
        rng = np.random.default_rng(seed)
        dim, size = int(rng.integers(1, 300)), int(rng.integers(1, 70))
        blocks = -(-dim // size)
        count, begin = int(rng.integers(0, 9)), int(rng.integers(0, 50))
        packed = rng.integers(0, 256, (count, dim + blocks), np.uint8)
        heads, head_begin = int(rng.integers(1, 7)), int(rng.integers(0, 4))
        local, tokens = int(rng.integers(1, 5)), int(rng.integers(0, 6))
        ids = rng.integers(begin - 3, begin + count + 3, (heads, tokens),
                           np.int32)  # heads first
        stride = dim + blocks
        rows = Rows(packed.ctypes.data, packed.ctypes.data + dim, stride,
                    stride, begin, begin + count, 1, 2, dim, size, 1)
        misses = ctypes.c_uint64(5)
        args = LookupArgs(ids.ctypes.data, 1, max(tokens, 1), tokens,
                          head_begin, local, heads, ctypes.addressof(misses))
        out = np.full((tokens, local, dim), 0xa5a5, np.uint16)
        assert kernels.engram_cpu_lookup(
            ctypes.byref(rows), ctypes.byref(args), P(out.ctypes.data),
            None) == 0
        with np.errstate(all="ignore"):
            scales = factors[packed[:, dim:]].repeat(size, 1)[:, :dim]
            decoded = to_bf16(values[packed[:, :dim]] * scales)
        want = np.zeros_like(out)
        missed = 5
        for token in range(tokens):
            for head in range(head_begin, min(head_begin + local, heads)):
                row = ids[head, token] - begin
                if 0 <= row < count:
                    want[token, head - head_begin] = decoded[row]
                else:
                    missed += 1
        wrong = np.argwhere(out != want)
        assert not len(wrong), (seed, wrong[0], out[tuple(wrong[0])],
                                want[tuple(wrong[0])])
        assert misses.value == missed, seed
