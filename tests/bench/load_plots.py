# SPDX-License-Identifier: Apache-2.0
"""Tables and the plot of load.json."""

LABELS = {
    "preadv": "O_DIRECT preadv, plain memory",
    "mmap": "mmap and copy, one thread",
    "mmap_threads": "mmap and copy, all threads",
    "safetensors": "safetensors",
    "preadv_full": "preadv, then pack, hash, lock",
    "mmap_full": "mmap, packed and hashed from there, lock",
    "engramd": "engramd, all of it",
    "engramd_checked": "engramd, and read back"}
COLORS = {"engramd": "#1f5fa8", "engramd_checked": "#7fb0e0"}
PAGES = {"small": "4 KiB", "huge": "2 MiB"}


def drive_table(part, markdown):
    rows = [(LABELS[name], f"{one['median'] / 1e9:.2f}",
             f"{one['min'] / 1e9:.2f}–{one['max'] / 1e9:.2f}",
             f"{one['of_limit'] * 100:.0f} %")
            for name, one in part["ways"].items()]
    limit = part["limit"]
    tools = {}
    for one in part["settings"]:
        tool = one["setting"][0]
        tools[tool] = max(one["rate"], tools.get(tool, 0))
    best = ", ".join(f"{tool} {rate / 1e9:.2f}"
                     for tool, rate in tools.items())
    return (f"{part['gib']:g} GiB; the drive's limit is "
            f"{limit['median'] / 1e9:.2f} GB/s "
            f"({limit['min'] / 1e9:.2f}–{limit['max'] / 1e9:.2f}; at first "
            f"{best}).\n\n"
            + markdown(("way", "GB/s", "lowest–highest", "of the drive"),
                       rows)
            + "".join(f"\n\n{LABELS[name]}: not measured, {why}."
                      for name, why in part["skipped"].items()))


def memory_table(part, markdown):
    works = list(dict.fromkeys(x["work"] for x in part["memory"]))
    at = {(x["work"], x["threads"]): x["gb_per_second"]
          for x in part["memory"]}
    rows = [(one["threads"], f"{one['median'] / 1e9:.2f}",
             f"{one['median'] / 1e9 / one['threads']:.2f}",
             *(f"{at[work, one['threads']]:.1f}" for work in works))
            for one in part["engramd"]]
    return markdown(("threads", "load from a ramdisk, GB/s", "a thread",
                     *(f"{work.replace('_', ', ')}" for work in works)), rows)


def curve_table(part, markdown):
    return markdown(
        ("GiB", "s a GiB", "of the drive"),
        [(f"{x['gib']:.1f}", f"{x['seconds_per_gib']:.3f}",
          f"{x['of_limit'] * 100:.0f} %") for x in part])


def pages_table(part, markdown):
    rows = [(PAGES[x["pages"]], x["threads"],
             f"{1 / x['per_gib']['touch_seconds']:.1f}",
             f"{x['per_gib']['pin_seconds'] * 1e3:.1f}",
             f"{x['huge'] * 100:.0f} %") for x in part["runs"]]
    return markdown(("pages", "threads", "first touch, GiB/s",
                     "mlock after it, ms a GiB", "on huge pages"), rows)


PARTS = {"drive": drive_table, "ramdisk": memory_table, "curve": curve_table,
         "pages": pages_table}


def tables(result, markdown):
    return "\n\n".join(make(result[part], markdown)
                       for part, make in PARTS.items() if part in result)


def draw_drive(part, axes):
    names = list(part["ways"])
    values = [part["ways"][name]["of_limit"] * 100 for name in names]
    bars = axes.barh([LABELS[name] for name in names], values,
                     color=[COLORS.get(name, "#b5b5b5") for name in names])
    axes.bar_label(bars, fmt="%.0f %%", padding=2, fontsize=7)
    axes.axvline(100, color="black", linewidth=0.8)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.margins(x=0.12)
    axes.set_title("Loading, per cent of the drive's limit")


def draw_memory(part, axes):
    threads = [x["threads"] for x in part["engramd"]]
    axes.plot(threads, [x["median"] / 1e9 for x in part["engramd"]],
              marker="o", label="engramd, from a ramdisk",
              color=COLORS["engramd"])
    for work, style in (("pack", "--"), ("checksum", ":"), ("memcpy", "-.")):
        found = [x for x in part["memory"] if x["work"] == work]
        axes.plot([x["threads"] for x in found],
                  [x["gb_per_second"] for x in found], linestyle=style,
                  color="#7a9a3f", marker=".", label=f"{work} alone")
    axes.set(xlabel="threads", ylabel="GB/s", ylim=(0, None),
             title="Where no drive is the limit")
    axes.legend()


def draw(result, left, right):
    if "drive" in result:
        draw_drive(result["drive"], left)
    if "ramdisk" in result:
        draw_memory(result["ramdisk"], right)
