#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plot how many rows a second a table gives on the CPU, by batch size and by
threads, from `engramctl bench --json`.

    plot_rates.py TABLE [--socket PATH] [--out rates.svg]
    plot_rates.py --from rates.json --out rates.svg     # measured before

Needs matplotlib, and engramctl in PATH (or --engramctl); `--save rates.json`
keeps what was measured.
"""
import argparse
import json
import os
import subprocess
import sys

ROWS = (24, 192, 1536, 12288, 98304)


def measure(args):
    """{"runs": [what engramctl prints]}."""
    cpus = os.cpu_count() or 1
    threads = sorted({1, max(1, cpus // 2), cpus})
    runs = []
    for count in threads:
        for rows in ROWS:
            command = [args.engramctl, "bench", args.table, "--json",
                       "--threads", str(count), "--rows", str(rows),
                       "--seconds", str(args.seconds)]
            if args.socket:
                command[1:1] = ["--socket", args.socket]
            done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
            if done.returncode:
                sys.exit(done.returncode)
            runs.append(json.loads(done.stdout))
    return {"runs": runs}


def series(result):
    """{(distribution, threads): [(rows, Mrow/s)]}, and the plain loop's."""
    found = {}
    for run in result["runs"]:
        for case in run["cases"]:
            key = (case["distribution"], run["threads"])
            found.setdefault(key, []).append(
                (case["rows"], case["lookup"]["rows_per_second_median"] / 1e6))
            if run["threads"] == 1:
                found.setdefault((case["distribution"], 0), []).append(
                    (case["rows"],
                     case["plain"]["rows_per_second_median"] / 1e6))
    return {key: sorted(points) for key, points in found.items()}


def label(threads):
    if threads == 0:
        return "memcpy and convert, 1 thread"
    return f"engram_lookup, {threads} thread" + "s" * (threads > 1)


def plot(result, out):
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    found = series(result)
    kinds = sorted({kind for kind, _ in found})
    figure, axes = pyplot.subplots(1, len(kinds), figsize=(5 * len(kinds), 4),
                                   squeeze=False, layout="constrained")
    for place, kind in zip(axes[0], kinds):
        for (of, threads), points in sorted(found.items()):
            if of == kind:
                place.plot(*zip(*points), marker="o", label=label(threads),
                           linestyle="-" if threads else "--",
                           color=None if threads else "gray")
        place.set_xscale("log")
        place.set(title=f"{kind} ids", xlabel="rows of a batch",
                  ylabel="Mrow/s", ylim=(0, None))
        place.grid(alpha=0.3)
        place.legend(frameon=False)
    first = result["runs"][0]
    figure.suptitle(f"{first['table']}, layer {first['layer_id']}: "
                    f"{first['table_rows']} rows, {first['machine']['cpu']}")
    figure.savefig(out)
    print(f"wrote {out}")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", nargs="?")
    parser.add_argument("--socket")
    parser.add_argument("--seconds", type=float, default=0.5,
                        help="for each batch size and distribution "
                             "(%(default)s)")
    parser.add_argument("--engramctl", default="engramctl")
    parser.add_argument("--from", dest="saved", metavar="JSON")
    parser.add_argument("--save", metavar="JSON")
    parser.add_argument("--out", default="rates.svg",
                        help=".svg, .png or .pdf (%(default)s)")
    args = parser.parse_args()
    if args.saved:
        with open(args.saved, encoding="utf-8") as file:
            result = json.load(file)
    elif args.table:
        result = measure(args)
    else:
        parser.error("give a table, or --from")
    if args.save:
        with open(args.save, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)
    plot(result, args.out)


if __name__ == "__main__":
    main()
