# SPDX-License-Identifier: Apache-2.0
"""Table and plot of a result of bench_processes.py, for plot.py."""
GIB = 2**30


def tables(result, markdown):
    rows = []
    for one in result["processes"]:
        own, attached, ratio = one["own"], one["attached"], one["ratios"]
        rows.append((
            one["processes"],
            f"{own['seconds']:.2f}", f"{attached['seconds']:.2f}",
            f"{ratio['time']:.1f}x",
            f"{ratio['time_with_load']:.1f}x",
            f"{own['memory_bytes'] / GIB:.1f}",
            f"{attached['memory_bytes'] / GIB:.1f}",
            f"{ratio['memory']:.2f}x",
            f"{own['pss_bytes'] / GIB:.1f}",
            f"{attached['pss_bytes'] / GIB:.1f}"))
    return markdown(
        ("processes", "own copies, s", "attached, s", "faster",
         "with engramd's load", "own copies, GiB", "engramd and attached, GiB",
         "less memory", "PSS of own copies, GiB",
         "PSS of engramd and attached, GiB"), rows) + (
        f"\n\nA table of {result['table_bytes'] / GIB:.2f} GiB; engramd loads "
        f"it once, in {result['load_seconds']:.2f} s.")


def plot(result, figure, save, path):
    drawing, (left, right) = figure(2)
    cases = result["processes"]
    places = range(len(cases))
    for axes, value, title in (
            (left, lambda one: one["seconds"],
             "Start-up, seconds until the last process looks rows up"),
            (right, lambda one: one["memory_bytes"] / GIB,
             "Host memory, GiB, engramd's among it")):
        for shift, name, color, text in (
                (-0.2, "own", "#b04a2f", "each its own copy"),
                (0.2, "attached", "#1f5fa8", "attached to engramd")):
            bars = axes.bar([at + shift for at in places],
                            [value(case[name]) for case in cases], 0.38,
                            color=color, label=text)
            axes.bar_label(bars, fmt="%.2g", padding=2, fontsize=8)
        axes.set_xticks(list(places), [case["processes"] for case in cases])
        axes.grid(axis="x", visible=False)
        axes.set(xlabel="processes", title=title)
    left.axhline(result["load_seconds"], color="#1f5fa8", linestyle="--",
                 linewidth=1, label="engramd's load, once")
    left.legend()
    save(drawing, path)
