# SPDX-License-Identifier: Apache-2.0
"""Decode steps as CUDA graphs: hash, lookup, and both, for bench_lookup."""
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
        layers = self.params.num_layers
        cols = (self.params.max_ngram - self.params.min_ngram + 1) \
            * self.params.num_heads

        def ints(*shape, kind=torch.int32):
            return torch.zeros(shape, dtype=kind, device="cuda")

        self.input = ints(UNROLL, tokens)
        self.lookback = ints(UNROLL, tokens, LOOKBACK)
        self._positions = torch.full((tokens,), 1000, device="cuda")
        self._bounds = torch.arange(tokens + 1, dtype=torch.int32,
                                    device="cuda")
        self.hashed = ints(UNROLL, tokens, layers, cols)
        self.drawn = ints(UNROLL, tokens, layers, cols)
        self.rejects = ints(1, kind=torch.int64)
        self.out = torch.empty((tokens, cols, tables.DIM),
                               dtype=torch.bfloat16, device="cuda")

    def refill(self):
        self.input.random_(0, self.params.token_map_len)
        self.lookback.random_(0, self.params.token_map_len)
        self.drawn.random_(0, self._rows)

    def hash(self, step):
        batch = engram_ctypes.HashBatch(
            num_tokens=self.tokens, input_stride=1, position_stride=1,
            input_ids=self.input[step].data_ptr(),
            positions=self._positions.data_ptr(),
            query_start_loc=self._bounds.data_ptr(), query_stride=1,
            num_requests=self.tokens, lookback_depth=LOOKBACK,
            lookback_ids=self.lookback[step].data_ptr(),
            lookback_row_stride=LOOKBACK, lookback_col_stride=1)
        self._library.hash(self.params, batch, self.hashed[step].data_ptr(),
                           self.rejects.data_ptr())

    def lookup(self, ids):
        self._lookup.run(ids[:, 0], self.out)

    def graphs(self):
        """{"hash", "lookup", "hash_lookup"}: each all UNROLL steps."""
        def both(step):
            self.hash(step)
            self.lookup(self.hashed[step])

        steps = {"hash": self.hash,
                 "lookup": lambda step: self.lookup(self.drawn[step]),
                 "hash_lookup": both}
        self.refill()
        return {name: measure.capture(
            lambda function=function: [function(i) for i in range(UNROLL)])
            for name, function in steps.items()}


def measure_steps(library, table, tokens, repetitions):
    """Times of one step, and what doing both in one kernel could save at most:
    all that the hash adds."""
    lookup = variants.Ours(library, table, "packed")
    steps = Steps(library, table, lookup, tokens)
    graphs = steps.graphs()

    def replay(graph):
        def run(_):
            graph.replay()
        return run

    samples = {name: [] for name in graphs}
    for _ in range(repetitions):
        steps.refill()
        once = measure.interleaved(
            {name: replay(graph) for name, graph in graphs.items()}, 1,
            warm_up=0)
        for name, values in once.items():
            samples[name] += values
    if lookup.misses() or int(steps.rejects.item()):
        raise variants.WrongRows("hash: ids outside the table")
    result = {name: measure.summary(values[2:], 1 / UNROLL)
              for name, values in samples.items()}
    both, alone = (result[name]["median_us"]
                   for name in ("hash_lookup", "lookup"))
    return {"tokens": tokens, "steps_in_graph": UNROLL, **result,
            "fusing_saves_at_most_us": both - alone,
            "fusing_saves_at_most": (both - alone) / both}
