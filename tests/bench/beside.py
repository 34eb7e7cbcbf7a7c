# SPDX-License-Identifier: Apache-2.0
"""Work of a model on one stream beside lookups on another, for bench_model."""
import math
import statistics

import ids as id_sets
import measure
import table as tables

HEADS = 24
TOKENS = 8192
ID_SETS = 32  # by the time one comes again, nothing of it is cached
TRIES = 4


class Work:
    """One kind of work as a CUDA graph of `count` operations."""

    def __init__(self, name, count, operation, bytes_moved=0, flops=0):
        self.name, self.count = name, count
        self.bytes_moved, self.flops = bytes_moved, flops
        self._operation = operation  # holds the tensors of the graph
        self._graph = measure.capture(
            lambda: [operation(i) for i in range(count)])

    def enqueue(self, replays):
        for _ in range(replays):
            self._graph.replay()

    def describe(self):
        return {"work": self.name, "operations_in_graph": self.count,
                "bytes": self.bytes_moved, "flops": self.flops}


def gemm(name, rows, weights, count):
    """bf16 [rows, 5120] x [5120, 8192]; the weights rotate, so that they come
    from memory as a model's do."""
    import torch

    inner, outer = 5120, 8192
    left = torch.randn(rows, inner, device="cuda", dtype=torch.bfloat16)
    right = [torch.randn(outer, inner, device="cuda", dtype=torch.bfloat16)
             for _ in range(weights)]
    out = torch.empty(rows, outer, device="cuda", dtype=torch.bfloat16)

    def operation(i):
        torch.mm(left, right[i % weights].t(), out=out)

    return Work(name, count, operation, flops=2 * rows * inner * outer,
                bytes_moved=2 * (rows * (inner + outer) + inner * outer))


def copy(name, gib, count):
    import torch

    size = int(gib * 2**30)
    source = torch.randint(0, 256, (size,), device="cuda", dtype=torch.uint8)
    target = torch.empty_like(source)
    return Work(name, count, lambda _: target.copy_(source),
                bytes_moved=2 * size)


class Feeder:
    """A stream of lookups, each with the next set of ids."""

    def __init__(self, rows, seed):
        import torch

        self.stream = torch.cuda.Stream()
        self._sets = id_sets.make_sets("uniform", rows, ID_SETS, TOKENS,
                                       HEADS, seed)
        self._next = 0
        self._out = torch.empty((TOKENS, HEADS, tables.DIM),
                                dtype=torch.bfloat16, device="cuda")
        torch.cuda.synchronize()

    def enqueue(self, variant, count):
        """count lookups; the count + 1 events before, between and after."""
        import torch

        events = [torch.cuda.Event(enable_timing=True)
                  for _ in range(count + 1)]
        with torch.cuda.stream(self.stream):
            events[0].record()
            for event in events[1:]:
                variant.run(self._sets[self._next % ID_SETS], self._out)
                self._next += 1
                event.record()
        return events


def lookup_alone(feeder, variant, count):
    """Median microseconds of a lookup with nothing beside it."""
    import torch

    events = feeder.enqueue(variant, count + 1)
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) * 1e3 for a, b in
                             zip(events[1:], events[2:]))


def work_alone(work, stream, replays):
    """Microseconds of one operation with nothing beside it."""
    import torch

    begin = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)
    with torch.cuda.stream(stream):
        measure.give_head_start()
        begin.record()
        work.enqueue(replays)
        end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) * 1e3 / (replays * work.count)


class NotCovered(RuntimeError):
    """The lookups did not last as long as the work: nothing to report."""


def _both(work, stream, replays, feeder, variant, count):
    """Start `count` lookups, and the work once the first is over.  Times in
    microseconds after the first lookup's start."""
    import torch

    begin = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)
    with torch.cuda.stream(feeder.stream):
        measure.give_head_start()
    events = feeder.enqueue(variant, count)
    with torch.cuda.stream(stream):
        stream.wait_event(events[1])
        begin.record()
        work.enqueue(replays)
        end.record()
    torch.cuda.synchronize()
    bounds = [events[0].elapsed_time(event) * 1e3 for event in events]
    return (events[0].elapsed_time(begin) * 1e3,
            events[0].elapsed_time(end) * 1e3, bounds)


def overlap(start, stop, bounds):
    """Of work in [start, stop] and lookups that follow one another at
    `bounds`: the share of the work that they cover, how many lie wholly
    inside, and the mean time of those (NaN if there are none)."""
    covered = max(0.0, min(stop, bounds[-1]) - max(start, bounds[0]))
    inside = [x for x in bounds if start <= x <= stop]
    count = max(0, len(inside) - 1)
    mean = (inside[-1] - inside[0]) / count if count else math.nan
    return covered / (stop - start), count, mean


def work_beside(work, stream, replays, feeder, variant, lookups):
    """One operation and one lookup, in microseconds, while both run all the
    time; and how many lookups the next run should start."""
    for _ in range(TRIES):
        start, stop, bounds = _both(work, stream, replays, feeder, variant,
                                    lookups)
        coverage, inside, lookup = overlap(start, stop, bounds)
        if coverage == 1.0 and inside:
            begun = sum(x < stop for x in bounds)
            return {"operation_us": (stop - start) / (replays * work.count),
                    "lookup_us": lookup, "coverage": coverage,
                    "lookups_inside": inside}, math.ceil(begun * 1.2) + 2
        lookups *= 2
    raise NotCovered(
        f"{work.name}: {lookups // 2} lookups covered {coverage:.0%} of the "
        f"work, {inside} of them inside")
