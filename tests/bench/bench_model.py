# SPDX-License-Identifier: Apache-2.0
"""What a lookup takes from the model that runs beside it.

A large GEMM, one of decode size and a copy within device memory, each alone
and beside lookups of 8192 tokens x 24 rows that follow one another on a second
stream: by plain Triton with one program per SM and with half of that, and by
ours, packed, with 1, 2, 4 and 8 blocks.

  slow-down     time of the work beside the lookups / alone
  stolen time   of one lookup: its time beside the work x (1 - 1 / slow-down),
                the time by which the work ends later

A figure counts only when lookups covered the whole of the timed work, by the
events of both streams; how many lay inside is in the result.
"""
import statistics
import sys

import beside
import cuda_driver
import engram_ctypes
import measure
import table as tables
import variants

BLOCKS = (1, 2, 4, 8)


def works(quick):
    if quick:
        return [beside.gemm("gemm_large", 2048, 2, 8),
                beside.gemm("gemm_decode", 64, 2, 16),
                beside.copy("copy", 0.25, 8)]
    return [beside.gemm("gemm_large", 8192, 4, 8),
            beside.gemm("gemm_decode", 64, 8, 64),
            beside.copy("copy", 1, 8)]


def one_work(work, feeder, lookups, alone_us, args):
    """Interleave: alone, then beside each lookup, as often as asked."""
    import torch

    stream = torch.cuda.Stream()
    rounds = 2 if args.quick else args.rounds
    at_least = 20e3 if args.quick else 120e3
    estimate = beside.work_alone(work, stream, 2)
    replays = {}
    feed = {}
    for name in lookups:
        region = max(at_least, (3 if args.quick else 8) * alone_us[name])
        replays[name] = max(1, round(region / (estimate * work.count)))
        feed[name] = int(3 * region / alone_us[name]) + 4
    alone, seen = [], {name: [] for name in lookups}
    for _ in range(rounds):
        for name, variant in lookups.items():
            alone.append(beside.work_alone(work, stream, replays[name]))
            once, feed[name] = beside.work_beside(
                work, stream, replays[name], feeder, variant, feed[name])
            seen[name].append(once)
    alone.append(beside.work_alone(work, stream, replays[name]))
    base = statistics.median(alone)
    result = {**work.describe(), "alone_us": base, "alone_min_us": min(alone),
              "alone_max_us": max(alone), "beside": {}}
    for name, runs in seen.items():
        result["beside"][name] = combine(runs, base, alone_us[name])
    return result


def combine(runs, alone, lookup_alone):
    operation = statistics.median(run["operation_us"] for run in runs)
    lookup = statistics.median(run["lookup_us"] for run in runs)
    slow_down = operation / alone
    return {"operation_us": operation,
            "operation_min_us": min(run["operation_us"] for run in runs),
            "operation_max_us": max(run["operation_us"] for run in runs),
            "lookup_us": lookup, "lookup_alone_us": lookup_alone,
            "slow_down": slow_down,
            "stolen_us": lookup * (1 - 1 / slow_down),
            "rounds": len(runs),
            "coverage": min(run["coverage"] for run in runs),
            "lookups_inside": [run["lookups_inside"] for run in runs]}


def show(result):
    print(f"{result['work']}: alone {result['alone_us']:.1f} us")
    for name, one in result["beside"].items():
        print(f"  {name:12} {one['slow_down']:6.3f}x  lookup "
              f"{one['lookup_us'] / 1e3:7.2f} ms (alone "
              f"{one['lookup_alone_us'] / 1e3:7.2f})  stolen "
              f"{one['stolen_us'] / 1e3:6.2f} ms  inside "
              f"{one['lookups_inside']}", flush=True)


def run(args, library, table):
    sms = measure.sms()
    lookups = {"triton": variants.Triton(table, sms),
               "triton_half": variants.Triton(table, sms // 2)}
    lookups.update({f"packed_{blocks}": variants.Ours(
        library, table, "packed", blocks) for blocks in BLOCKS})
    checked = variants.check(table, lookups)
    print(f"equal to the model: {', '.join(checked)}")
    feeder = beside.Feeder(table.rows, args.seed)
    alone_us = {name: beside.lookup_alone(feeder, variant,
                                          3 if args.quick else 12)
                for name, variant in lookups.items()}
    result = []
    for work in works(args.quick):
        result.append(one_work(work, feeder, lookups, alone_us, args))
        show(result[-1])
    return {"tokens": beside.TOKENS, "heads": beside.HEADS,
            "checked_values": checked, "lookup_alone_us": alone_us,
            "works": result}


def main():
    parser = measure.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=5,
                        help="of all measurements (%(default)s)")
    args = parser.parse_args()
    measure.require_gpu()
    try:
        library = engram_ctypes.Library(args.lib)
        with tables.Table(args.dir, measure.table_gib(args), seed=args.seed,
                          read_only=not args.writable_registration) as table:
            print(f"table: {table.info}", flush=True)
            result = run(args, library, table)
            measure.write(args, "model", {"table": table.info, **result})
    except (tables.TableError, cuda_driver.DriverError, beside.NotCovered,
            engram_ctypes.EngramError, variants.WrongRows) as error:
        sys.exit(f"bench_model.py: {error}")


if __name__ == "__main__":
    main()
