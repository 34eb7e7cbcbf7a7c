# SPDX-License-Identifier: Apache-2.0
"""The lookups that are measured, all with one shape: run(ids, out), ids int32
[tokens, heads] contiguous, out bf16 [tokens, heads, DIM]."""
import ctypes

import numpy as np

import engram_ctypes
import measure
import rows_model
import table as tables


class Triton:
    """Plain Triton on split arrays, `programs` of them at most."""
    layout = "split"
    counts_misses = False

    def __init__(self, table, programs=None):
        import triton_kernels

        self._gather = triton_kernels.gather
        self._codes, self._scales = table.split_tensors()
        self._programs = programs or measure.sms()

    def run(self, ids, out):
        self._gather(self._codes, self._scales, ids, out, self._programs)


class Ours:
    """engram_cuda_lookup, from a descriptor in device memory, as a client of
    engramd does it."""
    counts_misses = True

    def __init__(self, library, table, layout, blocks=0,
                 hint=engram_ctypes.BACKGROUND):
        import torch

        self.layout = layout
        self._library = library
        rows = table.rows_struct(layout)
        text = bytes(engram_ctypes.Descriptor(rows=rows, generation=1))
        self._descriptor = torch.frombuffer(
            bytearray(text), dtype=torch.uint8).cuda()
        self.source = engram_ctypes.Source(
            rows=rows, descriptor=self._descriptor.data_ptr(), resident=0)
        self.grid = engram_ctypes.Grid(blocks=blocks, hint=hint)
        self._misses = torch.zeros(1, dtype=torch.int64, device="cuda")
        self._args = engram_ctypes.LookupArgs(
            ids_head_stride=1, misses=self._misses.data_ptr())

    def run(self, ids, out):
        tokens, heads = ids.shape
        args = self._args
        args.ids = ids.data_ptr()
        args.ids_token_stride = ids.stride(0)
        args.num_tokens = tokens
        args.local_heads = args.total_heads = heads
        self._library.lookup(self.source, args, out.data_ptr(), self.grid)

    @property
    def misses_address(self):
        return self._misses.data_ptr()

    def misses(self):
        """Ids that were in no row, since the last call."""
        count = int(self._misses.item())
        self._misses.zero_()
        return count


class WrongRows(RuntimeError):
    """A variant does not compute what it should; do not time it."""


def check(table, variants, tokens=170, heads=24, seed=7):
    """Compare each variant with the model on random rows and on the edges;
    {name: number of values compared}."""
    import torch

    generator = np.random.default_rng(seed)
    ids = generator.integers(0, table.rows, tokens * heads, dtype=np.int32)
    outside = np.array([-1, table.rows, 2**31 - 1, -2**31], np.int64)
    ids[:4] = outside
    ids[4:6] = 0, table.rows - 1
    device_ids = torch.from_numpy(ids).cuda().view(tokens, heads)
    result = {}
    for name, variant in variants.items():
        want = rows_model.decode(*table.host_rows(
            variant.layout, np.clip(ids, 0, table.rows - 1)))
        want[:len(outside)] = 0
        out = torch.full((tokens, heads, tables.DIM), 0x5555,
                         dtype=torch.int16, device="cuda")
        variant.run(device_ids, out.view(torch.bfloat16))
        torch.cuda.synchronize()
        got = out.cpu().numpy().view(np.uint16).reshape(want.shape)
        wrong = rows_model.differ(got, want,
                                  any_nan=not variant.counts_misses)
        if wrong.any():
            row, column = np.argwhere(wrong)[0]
            raise WrongRows(
                f"{name}: {wrong.sum()} of {want.size} values differ from the "
                f"model; the first is id {ids[row]} column {column}: "
                f"{got[row, column]:#06x} for {want[row, column]:#06x}")
        if variant.counts_misses and (misses := variant.misses()) != 4:
            raise WrongRows(f"{name}: {misses} misses counted, 4 expected")
        result[name] = want.size
    return result


def hash_geometry(rows, layers=2, heads=8, min_ngram=2, max_ngram=4,
                  vocabulary=129280, compressed=100_000, seed=1):
    """Parameters of a hash whose ids fall into `rows` rows, and the arrays
    that they point to (to be kept)."""
    import torch

    cols = (max_ngram - min_ngram + 1) * heads
    primes, candidate = [], rows // cols - 40 * layers * cols
    if candidate < 2:
        raise ValueError(f"{rows} rows are too few for {cols} columns")
    while len(primes) < layers * cols:
        candidate += 1
        if all(candidate % d for d in range(2, int(candidate**0.5) + 1)):
            primes.append(candidate)
    primes = torch.tensor(primes, dtype=torch.int64).view(layers, cols)
    offsets = primes.cumsum(1) - primes
    if int((offsets[:, -1] + primes[:, -1]).max()) > rows:
        raise ValueError("the primes need more rows than there are")
    generator = torch.Generator().manual_seed(seed)
    odd = torch.randint(0, 2**62 // compressed, (layers, max_ngram),
                        generator=generator) * 2 + 1
    token_map = torch.randint(0, compressed, (vocabulary,),
                              dtype=torch.int32, generator=generator)
    arrays = [x.cuda() for x in (odd, primes, offsets, token_map)]
    tables_of = [(ctypes.c_void_p * layers)(*[row.data_ptr() for row in x])
                 for x in arrays[:3]]
    params = engram_ctypes.HashParams(
        num_layers=layers, min_ngram=min_ngram, max_ngram=max_ngram,
        num_heads=heads, multipliers=ctypes.addressof(tables_of[0]),
        primes=ctypes.addressof(tables_of[1]),
        offsets=ctypes.addressof(tables_of[2]),
        token_map=arrays[3].data_ptr(), token_map_len=vocabulary, pad_id=0)
    return params, (arrays, tables_of)
