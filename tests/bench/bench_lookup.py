# SPDX-License-Identifier: Apache-2.0
"""Lookup of random rows of a table in host memory, over PCIe.

Measured in one run on one table, interleaved:
  triton             plain Triton gather over split arrays, one program per SM,
                     16 rows a tile: what the ratios compare with
  split              ours, on the same split arrays
  packed             ours, on packed records
  packed_foreground  ours, packed, with the hint that nothing else runs
for uniform and Zipf ids, all new in every repetition.  Then our grid from 1 to
32 blocks, and hash and lookups of two layers as decode steps in CUDA
graphs.

Each variant is compared with a model, bit by bit, before it is timed.
"""
import sys

import cuda_driver
import engram_ctypes
import ids as id_sets
import measure
import table as tables
import variants

HEADS = 24
TOKENS = (32, 256, 1024, 8192, 65536)
GRID_TOKENS = (32, 8192)
GRID_BLOCKS = (1, 2, 4, 8, 16, 32)
STEP_TOKENS = (1, 4, 8, 16, 32, 64)
BASE = "triton"


def repetitions(tokens, quick):
    if quick:
        return 3
    return 200 if tokens < 1024 else 100 if tokens < 8192 else \
        30 if tokens < 65536 else 11


def time_variants(table, compared, tokens, distribution, rounds, seed):
    """{name: summary} of each, with rates and the shape of its launch."""
    import torch

    warm_up = 2
    out = torch.empty((tokens, HEADS, tables.DIM), dtype=torch.bfloat16,
                      device="cuda")
    sets = id_sets.make_sets(distribution, table.rows,
                             len(compared) * (rounds + warm_up), tokens,
                             HEADS, seed).view(len(compared), -1, tokens,
                                               HEADS)
    timed = {}
    for own, (name, variant) in zip(sets, compared.items()):
        timed[name] = lambda turn, own=own, variant=variant: \
            variant.run(own[turn], out)
    samples = measure.interleaved(timed, rounds, warm_up)
    rows = tokens * HEADS
    result = {}
    for name, variant in compared.items():
        one = measure.summary(samples[name])
        blocks, threads = max(cuda_driver.launch_shape(
            lambda variant=variant: variant.run(sets[0, 0], out)))
        per_second = rows / one["median_us"] * 1e6
        result[name] = {**one, "rows_per_s": per_second,
                        "gb_per_s": per_second * tables.RECORD / 1e9,
                        "blocks": blocks, "threads": threads,
                        "sms": min(blocks, measure.sms())}
    for one in result.values():
        if BASE in result:
            one["speed_up"] = result[BASE]["median_us"] / one["median_us"]
    return {"distribution": distribution, "tokens": tokens, "heads": HEADS,
            "rows": rows, "distinct_rows": int(sets[0, 0].unique().numel()),
            "variants": result}


def show(case):
    for name, one in case["variants"].items():
        ratio = f"{one['speed_up']:6.2f}x" if "speed_up" in one else ""
        print(f"{case['distribution']:8} {case['tokens']:6} {name:18} "
              f"{one['median_us']:10.1f} us  min {one['min_us']:10.1f}  "
              f"{one['rows_per_s'] / 1e6:7.1f} Mrow/s  "
              f"{one['blocks']:4} blocks  {ratio}", flush=True)


def run(args, library, table):
    compared = {
        BASE: variants.Triton(table),
        "split": variants.Ours(library, table, "split"),
        "packed": variants.Ours(library, table, "packed"),
        "packed_foreground": variants.Ours(
            library, table, "packed", hint=engram_ctypes.FOREGROUND)}
    grids = {str(blocks): variants.Ours(library, table, "packed", blocks)
             for blocks in GRID_BLOCKS}
    grids["default"] = compared["packed"]
    checked = variants.check(table, compared | {
        f"packed, {name} blocks": one for name, one in grids.items()})
    print(f"equal to the model: {', '.join(checked)}")
    result = {"base": BASE, "checked_values": checked, "lookup": [],
              "grid": [], "steps": []}
    seed = args.seed
    for distribution in id_sets.DISTRIBUTIONS:
        for tokens in args.tokens:
            seed += 1
            case = time_variants(table, compared, tokens, distribution,
                                 repetitions(tokens, args.quick), seed)
            show(case)
            result["lookup"].append(case)
    for tokens in GRID_TOKENS:
        seed += 1
        case = time_variants(table, grids, tokens, "uniform",
                             repetitions(tokens, args.quick), seed)
        show(case)
        result["grid"].append(case)
    misses = {name: one.misses() for name, one in (compared | grids).items()
              if one.counts_misses}
    if any(misses.values()):
        raise variants.WrongRows(f"misses while timing: {misses}")
    result["steps"] = steps(args, library, table)
    return result


def steps(args, library, table):
    import hash_steps

    found = []
    for tokens in STEP_TOKENS:
        step = hash_steps.measure_steps(library, table, tokens,
                                        5 if args.quick else 60)
        print(f"step of {tokens} tokens: hash {step['hash']['median_us']:.1f}"
              f" us, lookups {step['lookups']['median_us']:.1f}, one by one "
              f"{step['one_by_one']['median_us']:.1f}, at once "
              f"{step['at_once']['median_us']:.1f}", flush=True)
        found.append(step)
    return found


def main():
    parser = measure.parser(__doc__)
    parser.add_argument(
        "--tokens", type=int, nargs="+", default=TOKENS, metavar="N",
        help=f"batch sizes, of {HEADS} rows a token (%(default)s)")
    args = parser.parse_args()
    measure.require_gpu()
    try:
        library = engram_ctypes.Library(args.lib)
        with tables.Table(args.dir, measure.table_gib(args), seed=args.seed,
                          read_only=not args.writable_registration) as table:
            print(f"table: {table.info}", flush=True)
            result = run(args, library, table)
            measure.write(args, "lookup", {"table": table.info, **result})
    except (tables.TableError, cuda_driver.DriverError,
            engram_ctypes.EngramError, variants.WrongRows) as error:
        sys.exit(f"bench_lookup.py: {error}")


if __name__ == "__main__":
    main()
