# SPDX-License-Identifier: Apache-2.0
"""Tables and plots of the results of the benchmarks.

Reads every JSON file in the results folder, takes the newest of each benchmark
(smoke runs never), prints Markdown tables for the README and writes lookup.svg,
model.svg and processes.svg.
"""
import argparse
import json
import pathlib
import sys

import attach_tables
import load_plots
import process_tables

HERE = pathlib.Path(__file__).resolve().parent

LABELS = {
    "triton": "Triton, one program per SM",
    "triton_half": "Triton, half of the SMs",
    "split": "ours, split", "packed": "ours, packed",
    "packed_foreground": "ours, packed, foreground",
    "packed_1": "ours, 1 block", "packed_2": "ours, 2 blocks",
    "packed_4": "ours, 4 blocks", "packed_8": "ours, 8 blocks",
    "gemm_large": "GEMM 8192x5120x8192", "gemm_decode": "GEMM 64x5120x8192",
    "copy": "copy of 1 GiB"}
COLORS = {
    "triton": "#b04a2f", "triton_half": "#dd9a7c", "split": "#7a9a3f",
    "packed": "#1f5fa8", "packed_foreground": "#7fb0e0",
    "packed_1": "#a9cbec", "packed_2": "#6fa3d8", "packed_4": "#1f5fa8",
    "packed_8": "#123a68"}


def label(name):
    return LABELS.get(name, name)


def markdown(head, rows):
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, x)) + " |" for x in lines)


def machine(result):
    """One line: what it ran on."""
    e = result["environment"]
    parts = []
    if e["gpu"]:
        parts += [e["gpu"], f"driver {e['driver']}", f"CUDA {e['cuda']}"]
    if "torch" in e:
        parts += [f"torch {e['torch']}", f"Triton {e['triton']}"]
    parts.append(f"{e['cpus']} CPUs ({e['cpu']})")
    if "table" in result:
        parts.append(f"a table of {result['table']['gib']:.0f} GiB, "
                     f"{result['table']['huge_gib']:.0f} of it on huge pages")
    return (f"{', '.join(parts)}; commit {e['commit'][:12]}, {e['date']}.\n"
            f"`{e['command']}`")


def lookup_short(result):
    """A line for each batch: for the README."""
    names = list(result["lookup"][0]["variants"])
    rows = []
    for case in result["lookup"]:
        seen = case["variants"]
        rows.append((case["distribution"], case["tokens"],
                     *(f"{seen[name]['median_us']:.0f} ({seen[name]['sms']})"
                       for name in names),
                     f"{seen['packed']['rows_per_s'] / 1e6:.1f}",
                     f"{seen['packed']['speed_up']:.2f}x"))
    return markdown(("ids", "tokens",
                     *(f"{name}, us (SMs)" for name in names),
                     "packed Mrow/s", "packed against Triton"), rows)


def lookup_tables(result):
    rows = [(case["tokens"], name if case["distribution"] == "uniform"
             else f"{name}, {case['distribution']} ids",
             f"{one['median_us']:.0f}", f"{one['min_us']:.0f}",
             f"{one['rows_per_s'] / 1e6:.1f}", f"{one['gb_per_s']:.2f}",
             one["sms"], f"{one['speed_up']:.2f}x")
            for case in result["lookup"]
            for name, one in case["variants"].items()]
    text = lookup_short(result) + "\n\n" + markdown(
        ("tokens", "variant", "median us", "min us", "Mrow/s", "GB/s", "SMs",
         "against Triton"), rows)
    rows = [(case["tokens"], name, one["blocks"],
             f"{one['median_us']:.0f}", f"{one['rows_per_s'] / 1e6:.1f}")
            for case in result["grid"]
            for name, one in case["variants"].items()]
    text += "\n\n" + markdown(("tokens", "grid", "blocks", "median us",
                               "Mrow/s"), rows)
    rows = [(step["tokens"], *(f"{step[name]['median_us']:.1f}" for name in
                               ("hash", "lookups", "one_by_one", "at_once")),
             f"{step['at_once_speed_up']:.2f}x")
            for step in result["steps"]]
    return text + "\n\n" + markdown(
        ("tokens", "hash us", "lookups us", "one by one us", "at once us",
         "gain"), rows)


def model_tables(result):
    rows = [(label(work["work"]), label(name), f"{one['slow_down']:.2f}x",
             f"{one['lookup_us'] / 1e3:.2f}",
             f"{one['lookup_alone_us'] / 1e3:.2f}",
             f"{one['stolen_us'] / 1e3:.2f}",
             "–".join(str(x) for x in sorted({min(one["lookups_inside"]),
                                              max(one["lookups_inside"])})))
            for work in result["works"]
            for name, one in work["beside"].items()]
    return markdown(("work", "lookup beside it", "slow-down",
                     "lookup ms beside", "alone", "stolen ms a lookup",
                     "lookups inside"), rows)


def gate_tables(result):
    rows = [(case["tokens"], name, f"{one['median_us']:.2f}",
             f"{one['min_us']:.2f}", f"{one['bytes_per_s'] / 1e9:.0f}",
             f"{one['of_copy'] * 100:.0f} %")
            for case in result["gate"]
            for name, one in case["variants"].items()]
    copy = result["copy"]["bytes_per_s"] / 1e9
    return markdown(("tokens", "variant", "median us", "min us", "GB/s",
                     f"of a copy's {copy:.0f} GB/s"), rows)


def restart_tables(result):
    modes = list(result["sizes"][0]["modes"])
    rows = [(f"{size['gib']:g}",
             *(f"{size['modes'][mode]['ready_s']['median'] * 1e3:.0f}"
               for mode in modes))
            for size in result["sizes"]]
    return markdown(("GiB", *(f"{mode}, ms" for mode in modes)), rows)


def python_tables(result):
    rows = [(one["call"], f"{one['python_us']:.1f}", f"{one['c_us']:.1f}",
             f"{one['overhead_us']:.1f}") for one in result["calls"]]
    return markdown(("call", "Python, us", "C, us", "overhead, us"), rows)


def reload_tables(result):
    steps = result["step_us"]
    before = steps["before"]["p500"]
    rows = [(phase.replace("_", " "), int(one["count"]),
             *(f"{one[at]:.0f}" for at in ("p500", "p900", "p990")),
             f"{(one['p500'] / before - 1) * 100:+.1f} %")
            for phase, one in steps.items()]
    return (f"{result['gib']:g} GiB, {result['tokens']} tokens a step, "
            f"{result['reloads']} reloads.\n\n"
            + markdown(("when", "steps", "p50 us", "p90", "p99",
                        "p50 to before"), rows))


def load_tables(result):
    return load_plots.tables(result, markdown)


TABLES = {"load": load_tables,
          "attach": lambda result: attach_tables.tables(result, markdown),
          "processes": lambda result: process_tables.tables(result, markdown),
          "python": python_tables,
          "reload": reload_tables,
          "restart": restart_tables,
          "lookup": lookup_tables, "model": model_tables,
          "gate": gate_tables}


def figure(columns):
    """A figure whose SVG is the same for the same data."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    matplotlib.rcParams.update({
        "svg.hashsalt": "engram", "font.size": 9, "axes.spines.top": False,
        "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.3,
        "axes.axisbelow": True,
        "legend.frameon": False})
    return pyplot.subplots(1, columns, figsize=(10, 4),
                           layout="constrained")


def save(drawing, path):
    drawing.savefig(path, metadata={"Date": None})


def log_ticks(axes, values):
    """A tick at each measured value, none between."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(values, [str(x) for x in values])
    axes.minorticks_off()


def plot_lookup(result, path):
    drawing, (left, right) = figure(2)
    cases = [case for case in result["lookup"]
             if case["distribution"] == "uniform"]
    tokens = [case["tokens"] for case in cases]
    for name in cases[0]["variants"]:
        left.plot(tokens, [case["variants"][name]["rows_per_s"] / 1e6
                           for case in cases],
                  marker="o", markersize=4, label=label(name),
                  color=COLORS.get(name),
                  linestyle="--" if name == "packed_foreground" else "-")
    log_ticks(left, tokens)
    left.set(xlabel="tokens, of 24 rows", ylabel="Mrow/s", ylim=(0, None),
             title="Lookup, uniform ids, new in each repetition")
    left.legend()

    for case, color in zip(result["grid"], ("#7a9a3f", "#1f5fa8")):
        sweep = [one for name, one in case["variants"].items()
                 if name != "default"]
        blocks = [one["blocks"] for one in sweep]
        right.plot(blocks, [one["rows_per_s"] / 1e6 for one in sweep],
                   marker="o", markersize=4, color=color,
                   label=f"packed, {case['tokens']} tokens")
        chosen = case["variants"]["default"]
        right.plot(chosen["blocks"], chosen["rows_per_s"] / 1e6, marker="o",
                   markersize=11, color=color, fillstyle="none",
                   linestyle="none",
                   label=f"the default at {case['tokens']} tokens")
        log_ticks(right, blocks)
    right.set(xlabel="blocks", ylabel="Mrow/s", ylim=(0, None),
              title="Blocks that a lookup takes")
    right.legend()
    save(drawing, path)


def plot_model(result, path):
    drawing, (left, right) = figure(2)
    names = list(result["works"][0]["beside"])
    height = 0.8 / len(names)
    for axes, value, title in (
            (left, lambda one: one["slow_down"], "Slow-down of the work"),
            (right, lambda one: one["stolen_us"] / 1e3,
             "Time stolen by a lookup of 8192 tokens, ms")):
        for i, name in enumerate(names):
            values = [value(work["beside"][name]) for work in result["works"]]
            places = [at + (i - (len(names) - 1) / 2) * height
                      for at in range(len(values))]
            bars = axes.barh(places, values, height * 0.9, label=label(name),
                             color=COLORS.get(name))
            axes.bar_label(bars, fmt="%.2f", padding=2, fontsize=7)
        axes.set_yticks(range(len(result["works"])),
                        [label(work["work"]) for work in result["works"]])
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.margins(x=0.12)
        axes.set_title(title)
    left.axvline(1, color="black", linewidth=0.8)
    right.set_yticklabels([])
    drawing.legend(*left.get_legend_handles_labels(), ncols=len(names) // 2,
                   loc="outside lower center")
    save(drawing, path)


def plot_load(result, path):
    drawing, axes = figure(2)
    load_plots.draw(result, *axes)
    save(drawing, path)


PLOTS = {"load": plot_load, "lookup": plot_lookup, "model": plot_model,
         "processes": lambda result, path: process_tables.plot(
             result, figure, save, path)}


def newest(folder):
    """{benchmark: result} of what is in the folder."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        name = result.get("bench") if isinstance(result, dict) else None
        if name not in TABLES or result["quick"]:
            continue
        if name == "reload":  # two lengths of step
            name += f" {result['tokens']}"
        date = result["environment"]["date"]
        if name not in found or date > found[name]["environment"]["date"]:
            found[name] = result
    return found


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=pathlib.Path,
                        default=HERE / "results",
                        help="folder of JSON files (%(default)s)")
    parser.add_argument("--out", type=pathlib.Path,
                        help="folder for the SVG files (the results')")
    parser.add_argument("--tables-only", action="store_true",
                        help="no plots; needs no matplotlib")
    args = parser.parse_args()
    found = newest(args.results)
    if not found:
        sys.exit(f"plot.py: no results of whole runs in {args.results}")
    out = args.out or args.results
    for name, result in found.items():
        tables = TABLES[result["bench"]](result)
        print(f"### {name}\n\n{machine(result)}\n\n{tables}\n")
        if name in PLOTS and not args.tables_only:
            PLOTS[name](result, out / f"{name}.svg")
            print(f"wrote {out / name}.svg", file=sys.stderr)


if __name__ == "__main__":
    main()
