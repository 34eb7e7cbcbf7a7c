# SPDX-License-Identifier: Apache-2.0
"""Lookups whose rows engramd's threads gather, against the GPU reading them.

A real engramd, with a table as large as the one that the rivals read, and
in one run, interleaved, all ids new in every repetition:
  triton   plain Triton gather over split arrays, one program per SM, 16 rows
           a tile: what the ratios compare with
  uva      ours, packed records read by the GPU
  host     gathered by engramd's threads
  hybrid   both, in the measured proportion
  auto     the one that was measured to be faster at this size
for uniform and Zipf ids; then host with 1 to 14 threads, and the latency of
decode steps.
"""
import pathlib
import statistics
import sys
import tempfile

import cuda_driver
import engram_ctypes
import gather_client
import ids as id_sets
import measure
import sidecar
import sparse_checkpoint
import table as tables
import variants

HEADS = 24
TOKENS = (32, 64, 256, 1024, 4096, 8192)
THREADS = (1, 2, 4, 8, 12, 14)
THREAD_TOKENS = (32, 256, 8192)
STEP_TOKENS = 32
PATHS = {"uva": gather_client.UVA, "host": gather_client.HOST,
         "hybrid": gather_client.HYBRID, "auto": gather_client.AUTO}
BASE = "triton"


def repetitions(tokens, quick):
    return 3 if quick else 100 if tokens < 1024 else 40


def time_paths(functions, rows, tokens, distribution, rounds, seed):
    """{name: summary}; functions of ids and out."""
    import torch

    warm_up = 3
    out = torch.empty((tokens, HEADS, tables.DIM), dtype=torch.bfloat16,
                      device="cuda")
    sets = id_sets.make_sets(distribution, rows,
                             len(functions) * (rounds + warm_up), tokens,
                             HEADS, seed).view(len(functions), -1, tokens,
                                               HEADS)
    timed = {}
    for own, (name, function) in zip(sets, functions.items()):
        timed[name] = lambda turn, own=own, function=function: \
            function(own[turn], out)
    samples = measure.interleaved(timed, rounds, warm_up)
    result = {}
    for name in functions:
        one = measure.summary(samples[name])
        one["rows_per_s"] = tokens * HEADS / one["median_us"] * 1e6
        result[name] = one
    for one in result.values():
        if BASE in result:
            one["speed_up"] = result[BASE]["median_us"] / one["median_us"]
    return {"distribution": distribution, "tokens": tokens,
            "rows": tokens * HEADS, "paths": result}


def show(case, note=""):
    for name, one in case["paths"].items():
        ratio = f"{one['speed_up']:6.2f}x" if "speed_up" in one else ""
        print(f"{note}{case['distribution']:8} {case['tokens']:6} {name:8} "
              f"{one['median_us']:10.1f} us  min {one['min_us']:10.1f}  "
              f"{one['rows_per_s'] / 1e6:7.1f} Mrow/s {ratio}", flush=True)


def path_functions(client, names):
    return {name: lambda ids, out, path=PATHS[name]:
            client.lookup(path, ids, out) for name in names}


def latency(client, rows, steps, seed):
    """Percentiles of single decode steps, each with new ids, of each path."""
    import torch

    batch = 1000
    out = torch.empty((STEP_TOKENS, HEADS, tables.DIM), dtype=torch.bfloat16,
                      device="cuda")
    result = {}
    for name, path in (("uva", gather_client.UVA),
                       ("host", gather_client.HOST)):
        times = []
        while len(times) < steps:
            seed += 1
            sets = id_sets.make_sets("uniform", rows, batch, STEP_TOKENS,
                                     HEADS, seed)
            events = [torch.cuda.Event(enable_timing=True)
                      for _ in range(2 * batch)]
            torch.cuda.synchronize()
            for i, ids in enumerate(sets):
                events[2 * i].record()
                client.lookup(path, ids, out)
                events[2 * i + 1].record()
            torch.cuda.synchronize()
            times += [events[2 * i].elapsed_time(events[2 * i + 1]) * 1e3
                      for i in range(batch)]
        cut = statistics.quantiles(times, n=1000)
        result[name] = {"steps": len(times), "p50_us": cut[499],
                        "p99_us": cut[989], "p99_9_us": cut[998],
                        "max_us": max(times)}
        print(f"step of {STEP_TOKENS} tokens, {name}: {result[name]}",
              flush=True)
    return result


class Server:
    """An engramd with so many gather threads, each pinned to a core; cores
    from the last one down."""

    def __init__(self, args, work, checkpoint, threads):
        import os

        cores = sorted(os.sched_getaffinity(0))[-threads:]
        self.sidecar = sidecar.Sidecar(
            work, checkpoint, args.huge, f"{int(args.gib) + 2}g",
            gather={"threads": len(cores), "cores": cores})
        self.sidecar.load()
        self.socket = self.sidecar.socket

    def gather(self):
        return self.sidecar.client.call("status")["gather"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.sidecar.stop()


def compare(args, work, checkpoint, rows):
    """All paths beside Triton, and latencies."""
    library = args.lib
    with tables.Table(args.dir, args.gib, seed=args.seed) as table, \
            Server(args, work, checkpoint, args.threads) as server, \
            gather_client.Client(library, server.socket) as client:
        rival = variants.Triton(table)
        functions = {BASE: rival.run, **path_functions(client, PATHS)}
        found, seed = [], args.seed
        for distribution in id_sets.DISTRIBUTIONS:
            for tokens in args.tokens:
                seed += 1
                case = time_paths(functions, min(rows, table.rows), tokens,
                                  distribution,
                                  repetitions(tokens, args.quick), seed)
                case["auto_path"] = list(PATHS)[
                    (client.path(tokens * HEADS) - 1) % 4]
                show(case)
                found.append(case)
        steps = latency(client, rows, 1000 if args.quick else 20000, seed)
        return {"table": table.info, "threads": args.threads,
                "lookup": found, "latency": steps,
                "counters": client.counters(), "gather": server.gather()}


def by_threads(args, work, checkpoint, rows):
    found = []
    for threads in args.by_threads:
        with Server(args, work, checkpoint, threads) as server, \
                gather_client.Client(
                    args.lib, server.socket,
                    placement=gather_client.NOT_REGISTERED) as client:
            for tokens in THREAD_TOKENS:
                case = time_paths(path_functions(client, ["host"]), rows,
                                  tokens, "uniform",
                                  repetitions(tokens, args.quick),
                                  args.seed + threads)
                case["threads"] = server.gather()["threads"]
                case["failed"] = client.counters()["failed"]
                show(case, f"{threads:3} threads ")
                found.append(case)
    return found


def main():
    parser = measure.parser(__doc__)
    parser.add_argument("--tokens", type=int, nargs="+", default=TOKENS,
                        metavar="N", help="batch sizes (%(default)s)")
    parser.add_argument("--threads", type=int, default=12,
                        help="of engramd, beside the rivals (%(default)s)")
    parser.add_argument("--by-threads", type=int, nargs="*", default=THREADS,
                        help="then with so many each (%(default)s)")
    args = parser.parse_args()
    # two tables at once
    args.gib = args.gib or (1 if args.quick else 48)
    measure.require_gpu()
    try:
        sidecar.check_mounts("always")
        args.huge = "always"
    except sidecar.CannotMount as error:
        print(f"on small pages: {error}", file=sys.stderr)
        args.huge = None
    # not in /dev/shm, which is engramd's own
    with tempfile.TemporaryDirectory() as directory:
        work = pathlib.Path(directory)
        checkpoint = work / "model"
        rows = sparse_checkpoint.make(checkpoint, args.gib)
        try:
            result = compare(args, work, checkpoint, rows)
            result["by_threads"] = by_threads(args, work, checkpoint, rows)
        except (tables.TableError, cuda_driver.DriverError,
                engram_ctypes.EngramError, RuntimeError) as error:
            sys.exit(f"bench_gather.py: {error}")
    measure.write(args, "gather", result)


if __name__ == "__main__":
    main()
