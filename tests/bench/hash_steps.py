# SPDX-License-Identifier: Apache-2.0
"""Decode steps of a model of two layers as CUDA graphs, for bench_lookup: hash
and two lookups, one by one and by engram_cuda_hash_lookup."""
import ctypes

import engram_ctypes
import measure
import table as tables
import variants

LOOKBACK = 3
UNROLL = 16  # steps in a graph, so that its launch counts for little


class Steps:
    """UNROLL steps of `tokens` requests of one token each.  Every step has its
    own input; refill() makes all of it new."""

    def __init__(self, library, table, lookup, tokens):
        import torch

        self.params, self._kept = variants.hash_geometry(table.rows)
        self._library, self._lookup, self._rows = library, lookup, table.rows
        self.tokens = tokens
        self._layers = self.params.num_layers
        cols = (self.params.max_ngram - self.params.min_ngram + 1) \
            * self.params.num_heads

        def ints(*shape, kind=torch.int32):
            return torch.zeros(shape, dtype=kind, device="cuda")

        self.input = ints(UNROLL, tokens)
        self.lookback = ints(UNROLL, tokens, LOOKBACK)
        self._positions = torch.full((tokens,), 1000, device="cuda")
        self._bounds = torch.arange(tokens + 1, dtype=torch.int32,
                                    device="cuda")
        self.hashed = ints(UNROLL, tokens, self._layers, cols)
        self.drawn = ints(UNROLL, tokens, self._layers, cols)
        self.rejects = ints(1, kind=torch.int64)
        self.outs = torch.empty((self._layers, tokens, cols, tables.DIM),
                                dtype=torch.bfloat16, device="cuda")
        self._step = self._make_step(cols)

    def _make_step(self, cols):
        layers = self._layers
        self._sources = (engram_ctypes.Source * layers)(
            *[self._lookup.source] * layers)
        self._pointers = (ctypes.c_void_p * layers)(
            *[out.data_ptr() for out in self.outs])
        return engram_ctypes.Step(
            sources=ctypes.addressof(self._sources),
            outs=ctypes.addressof(self._pointers),
            ids=self.hashed.data_ptr(), head_begin=0, local_heads=cols,
            misses=self._lookup.misses_address,
            rejects=self.rejects.data_ptr())

    def refill(self):
        self.input.random_(0, self.params.token_map_len)
        self.lookback.random_(0, self.params.token_map_len)
        self.drawn.random_(0, self._rows)

    def _batch(self, step):
        return engram_ctypes.HashBatch(
            num_tokens=self.tokens, input_stride=1, position_stride=1,
            input_ids=self.input[step].data_ptr(),
            positions=self._positions.data_ptr(),
            query_start_loc=self._bounds.data_ptr(), query_stride=1,
            num_requests=self.tokens, lookback_depth=LOOKBACK,
            lookback_ids=self.lookback[step].data_ptr(),
            lookback_row_stride=LOOKBACK, lookback_col_stride=1)

    def hash(self, step):
        self._library.hash(self.params, self._batch(step),
                           self.hashed[step].data_ptr(),
                           self.rejects.data_ptr())

    def lookups(self, ids):
        for layer in range(self._layers):
            self._lookup.run(ids[:, layer], self.outs[layer])

    def one_by_one(self, step):
        self.hash(step)
        self.lookups(self.hashed[step])

    def at_once(self, step):
        self._library.hash_lookup(self.params, self._batch(step), self._step,
                                  self._lookup.grid)

    def check(self):
        """Both ways give the same bits."""
        import torch

        self.refill()
        self.one_by_one(0)
        want = self.outs.view(torch.int16).clone()
        self.outs.zero_()
        self.at_once(0)
        if not torch.equal(self.outs.view(torch.int16), want):
            raise variants.WrongRows("hash_lookup: other rows")

    def graphs(self):
        """Each all UNROLL steps."""
        steps = {"hash": self.hash,
                 "lookups": lambda step: self.lookups(self.drawn[step]),
                 "one_by_one": self.one_by_one, "at_once": self.at_once}
        self.refill()
        return {name: measure.capture(
            lambda function=function: [function(i) for i in range(UNROLL)])
            for name, function in steps.items()}


def measure_steps(library, table, tokens, repetitions, blocks=0):
    """Times of one step.  The input is new before every replay: rows that the
    one before has read would come faster."""
    lookup = variants.Ours(library, table, "packed", blocks)
    steps = Steps(library, table, lookup, tokens)
    steps.check()
    graphs = steps.graphs()
    samples = {name: [] for name in graphs}
    for _ in range(repetitions):
        for name, graph in graphs.items():
            steps.refill()
            samples[name] += measure.interleaved(
                {name: lambda _, graph=graph: graph.replay()}, 1,
                warm_up=0)[name]
    if lookup.misses() or int(steps.rejects.item()):
        raise variants.WrongRows("hash: ids outside the table")
    result = {name: measure.summary(values[2:], 1 / UNROLL)
              for name, values in samples.items()}
    return {"tokens": tokens, "layers": steps.params.num_layers,
            "steps_in_graph": UNROLL, **result,
            "at_once_speed_up": result["one_by_one"]["median_us"]
            / result["at_once"]["median_us"]}
