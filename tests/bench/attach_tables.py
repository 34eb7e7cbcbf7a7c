# SPDX-License-Identifier: Apache-2.0
"""The tables of a result of bench_attach.py, for plot.py."""


def tables(result, markdown):
    rows = []
    for case in result["pages"]:
        for name, text in (("whole", "the whole table"),
                           ("rank", "one of eight ranks, alone"),
                           ("ranks", "eight ranks at once, each")):
            one = case[name]
            rows.append((
                case["pages"], text, f"{one['gib']:.2f}",
                f"{one['register_s_per_gib']['median'] * 1e3:.1f}",
                f"{one['register_s_per_gib']['max'] * 1e3:.1f}",
                f"{one['ready_seconds']['median']:.3f}",
                f"{one['detach_seconds']['median']:.3f}",
                f"{one['device_bytes'] / 2**20 / one['gib']:.2f}"))
    text = markdown(("pages", "attached", "GiB", "registering, ms a GiB",
                     "slowest", "attach to ready, s", "detach, s",
                     "device memory, MiB a GiB"), rows)
    rows = []
    for case in result["pages"]:
        for one in case["memory"]:
            part = one["table"]
            rows.append((
                case["pages"], one["processes"], f"{part['rss'] / 2**30:.2f}",
                f"{part['pss'] / 2**30:.2f}",
                f"{(part['private_clean'] + part['private_dirty']) / 2**20:.1f}",
                f"{part['locked'] / 2**20:.1f}",
                f"{one['grown']['private_dirty'] / 2**20:.1f}",
                f"{part['shmempmdmapped'] / max(part['rss'], 1):.0%}"))
    text += "\n\n" + markdown(
        ("pages", "processes", "table resident in one, GiB",
         "its share (PSS), GiB", "private of the table, MiB", "locked, MiB",
         "private memory grown by, MiB", "on huge pages"), rows)
    for name, why in result["skipped"].items():
        text += f"\n\nnot measured, {name}: {why}"
    return text
