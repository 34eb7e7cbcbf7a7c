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
for uniform and Zipf ids; then the latency of decode steps, alone, beside a
prefill, with the threads' cores loaded, and of four clients at once; what
lookups take from a GEMM or a copy beside them (as in bench_model.py); lookups
through a cache in device memory, which has seen ids of the same kind before,
and with repeated rows gathered once, for all sizes of batches; and host with 1
to 14 threads.
"""
import itertools
import pathlib
import sys
import tempfile

import beside
import bench_model
import cuda_driver
import engram_ctypes
import gather_client
import gather_steps
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
CLIENTS = 4  # at once
PARTS = ("paths", "latency", "stolen", "cache", "threads")
WARM_TOKENS, WARM_LOOKUPS = 8192, 100  # of a cache
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


def report(steps, what, name, times):
    steps.setdefault(what, {})[name] = gather_steps.percentiles(times)
    print(f"steps {what}, {name}: {steps[what][name]}", flush=True)


def latency(args, server, client, rows, count):
    """Percentiles of single decode steps, each with new ids."""
    library, seed, steps = args.lib, args.seed, {}
    paths = {name: PATHS[name] for name in ("uva", "host")}
    for name, path in paths.items():
        report(steps, "alone", name, gather_steps.measure_steps(
            client, rows, count, seed, path))
    with gather_client.Client(library, server.socket,
                              measuring=False) as other:
        for name, path in paths.items():
            with gather_steps.Prefill(other, rows, path, seed) as prefill:
                times = gather_steps.measure_steps(client, rows, count,
                                                   seed + 1000, path)
            report(steps, "beside_prefill", name, times)
            steps["beside_prefill"][name]["prefills"] = prefill.lookups
    with gather_steps.Busy(server.cores):
        report(steps, "cores_loaded", "host", gather_steps.measure_steps(
            client, rows, count, seed + 2000, paths["host"]))
    steps["clients"] = {}
    for name, path in paths.items():
        steps["clients"][name] = gather_steps.several(
            CLIENTS, library, server.socket, rows, count, seed + 3000, path)
        print(f"steps of {CLIENTS} clients, {name}: "
              f"{steps['clients'][name]}", flush=True)
    return steps


class Gathered:
    """A variant of bench_model.py."""

    def __init__(self, client, path):
        self.run = lambda ids, out: client.lookup(path, ids, out)


def stolen(args, table, client, rows):
    """What lookups take from work beside them."""
    sms = measure.sms()
    library = engram_ctypes.Library(args.lib)
    lookups = {"triton": variants.Triton(table, sms),
               "triton_half": variants.Triton(table, sms // 2),
               "packed_2": variants.Ours(library, table, "packed", 2),
               "packed_4": variants.Ours(library, table, "packed", 4),
               "host": Gathered(client, PATHS["host"]),
               "hybrid": Gathered(client, PATHS["hybrid"])}
    feeder = beside.Feeder(min(rows, table.rows), args.seed)
    alone_us = {name: beside.lookup_alone(feeder, one,
                                          3 if args.quick else 12)
                for name, one in lookups.items()}
    found = []
    for work in bench_model.works(args.quick):
        found.append(bench_model.one_work(work, feeder, lookups, alone_us,
                                          args))
        bench_model.show(found[-1])
    return {"tokens": beside.TOKENS, "lookup_alone_us": alone_us,
            "works": found}


class Server:
    """An engramd with so many gather threads, each pinned to a core; cores
    from the last one down."""

    def __init__(self, args, work, checkpoint, threads):
        import os

        self.cores = cores = sorted(os.sched_getaffinity(0))[-threads:]
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
    """All paths beside Triton, latencies, and what a model beside loses."""
    result = {"threads": args.threads}
    with tables.Table(args.dir, args.gib, seed=args.seed) as table, \
            Server(args, work, checkpoint, args.threads) as server, \
            gather_client.Client(args.lib, server.socket) as client:
        result["table"] = table.info
        if "paths" in args.parts:
            result["lookup"] = compare_paths(args, table, client, rows)
        if "latency" in args.parts:
            result["latency"] = latency(
                args, server, client, rows,
                args.steps or (1000 if args.quick else 100000))
        if "stolen" in args.parts:
            result["stolen"] = stolen(args, table, client, rows)
        if "cache" in args.parts:
            result["cache"] = cached(args, table, server, client, rows)
        return {**result, "counters": client.counters(),
                "gather": server.gather()}


def compare_paths(args, table, client, rows):
    functions = {BASE: variants.Triton(table).run,
                 **path_functions(client, PATHS)}
    found, seed = [], args.seed
    for distribution in id_sets.DISTRIBUTIONS:
        for tokens in args.tokens:
            seed += 1
            case = time_paths(functions, min(rows, table.rows), tokens,
                              distribution, repetitions(tokens, args.quick),
                              seed)
            case["auto_path"] = list(PATHS)[
                (client.path(tokens * HEADS) - 1) % 4]
            show(case)
            found.append(case)
    return found


def warm(client, rows, distribution, seed):
    """What a cache has seen when it is measured."""
    import torch

    out = torch.empty((WARM_TOKENS, HEADS, tables.DIM), dtype=torch.bfloat16,
                      device="cuda")
    for turn in range(WARM_LOOKUPS):
        ids, = id_sets.make_sets(distribution, rows, 1, WARM_TOKENS, HEADS,
                                 seed + turn)
        client.lookup(PATHS["host"], ids, out)
    torch.cuda.synchronize()


def shares(before, after):
    """Of the rows between two looks at the counts."""
    count = {name: after[name] - before[name] for name in after}
    return {name: count[name] / max(count["rows"], 1)
            for name in ("hits", "repeats", "fills")}


def cached(args, table, server, client, rows):
    """Each distribution with a cache of its own."""
    found, rows = [], min(rows, table.rows)
    for distribution in id_sets.DISTRIBUTIONS:
        with gather_client.Client(
                args.lib, server.socket,
                cache_bytes=args.cache_mib << 20) as cache, \
                gather_client.Client(args.lib, server.socket,
                                     deduplicate=1) as once:
            warm(cache, rows, distribution, args.seed + 5000)
            functions = {BASE: variants.Triton(table).run}
            for prefix, one, names in (("", client, ("auto",)),
                                       ("cache_", cache, PATHS),
                                       ("once_", once, ("host", "hybrid"))):
                functions.update({
                    prefix + name: function for name, function in
                    path_functions(one, names).items()})
            for tokens in args.tokens:
                before = cache.stats(), once.stats()
                case = time_paths(functions, rows, tokens, distribution,
                                  repetitions(tokens, args.quick),
                                  args.seed + 7000 + tokens)
                case["cache"] = shares(before[0], cache.stats())
                case["once"] = shares(before[1], once.stats())
                case["cache"].update(entries=before[0]["entries"],
                                     device_bytes=before[0]["device_bytes"])
                show(case)
                print(f"cache {case['cache']}, once {case['once']}",
                      flush=True)
                found.append(case)
    return found


def by_threads(args, work, checkpoint, rows):
    found = []
    for threads in args.by_threads:
        with Server(args, work, checkpoint, threads) as server, \
                gather_client.Client(
                    args.lib, server.socket,
                    placement=gather_client.NOT_REGISTERED) as client:
            for tokens, distribution in itertools.product(
                    THREAD_TOKENS, id_sets.DISTRIBUTIONS):
                case = time_paths(path_functions(client, ["host"]), rows,
                                  tokens, distribution,
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
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS,
                        help="(all)")
    parser.add_argument("--cache-mib", type=int, default=1024,
                        help="of the cache (%(default)s)")
    parser.add_argument("--steps", type=int,
                        help="of each latency (100000; with --quick 1000)")
    parser.add_argument("--rounds", type=int, default=5,
                        help="of what is stolen (%(default)s)")
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
            result = {}
            if set(args.parts) - {"threads"}:
                result = compare(args, work, checkpoint, rows)
            if "threads" in args.parts:
                result["by_threads"] = by_threads(args, work, checkpoint,
                                                  rows)
        except (tables.TableError, cuda_driver.DriverError,
                beside.NotCovered, engram_ctypes.EngramError, RuntimeError) as error:
            sys.exit(f"bench_gather.py: {error}")
    measure.write(args, "gather_cache" if list(args.parts) == ["cache"]
                  else "gather", result)


if __name__ == "__main__":
    main()
