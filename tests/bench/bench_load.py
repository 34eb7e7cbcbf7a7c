#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How fast a checkpoint becomes a table that can be lent.

  drive    a file set on a drive: the drive's own limit (fio, or dd with
           O_DIRECT), threads that read with O_DIRECT into plain memory, mmap
           and copy as safetensors does it, and engramd.  "full" ways also pack,
           hash, and lock, as engramd does.
  ramdisk  the same source in memory, so that no drive is the limit: engramd by
           threads; packing and checksum beside memcpy
  curve    engramd on tables of several sizes: time for each GiB
  pages    first touch and pinning of small and huge pages, by threads

Needs no GPU, no torch and, but for the run with safetensors itself, nothing
but Python.  Pages of the files are dropped from the cache before each read.
"""
import functools
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import drive
import measure
import sidecar

BUILD = measure.ROOT / os.environ.get("ENGRAM_BUILD", "build")
PROBE = BUILD / "tests/load_probe"
MEMORY_PROBE = BUILD / "tests/memory_probe"
PARTS = ["drive", "ramdisk", "curve", "pages"]
GIB = 1 << 30
RECORD, COLUMNS, LAYERS = 264, 24, 2

SAFETENSORS = """
import json, sys, time
from safetensors import safe_open
import torch
began, held = time.monotonic(), []
for name in sys.argv[1:]:
    with safe_open(name, framework="pt") as file:
        for key in file.keys():
            held.append(file.get_tensor(key).clone())
print(json.dumps({
    "bytes": sum(x.numel() * x.element_size() for x in held),
    "seconds": time.monotonic() - began}))
"""


def parser():
    result = measure.parser(__doc__, table=False)
    result.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS,
                        help="what to measure (all)")
    result.add_argument("--dir", help="where checkpoints are written: on the "
                                      "drive to be measured (a temporary "
                                      "directory)")
    result.add_argument("--ramdisk", default="/dev/shm",
                        help="a tmpfs (%(default)s)")
    result.add_argument("--ways", nargs="+", metavar="WAY",
                        help="of drive: preadv, mmap, mmap_threads, "
                             "safetensors, preadv_full, mmap_full, engramd, "
                             "engramd_checked (all)")
    result.add_argument("--gib", type=float,
                        help="size of the table (4; with --quick 0.05)")
    result.add_argument("--ramdisk-gib", type=float,
                        help="of that in the ramdisk (as --gib, at most a "
                             "fifth of the memory)")
    result.add_argument("--sizes", type=float, nargs="+",
                        help="of the curve, GiB (1 2 4 8; with --quick "
                             "0.02 0.05)")
    result.add_argument("--repeat", type=int,
                        help="rounds (5; with --quick 1)")
    result.add_argument("--threads", type=int, nargs="+",
                        help="of ramdisk and pages (1, 2, 4 and so on to all "
                             "cores)")
    return result


def synth(directory, gib):
    """A checkpoint whose tables have that size together, and its files."""
    vocabulary = int(gib * GIB / RECORD / COLUMNS / LAYERS)
    subprocess.run([BUILD / "bin/engram-synth", "--engram-vocab-size",
                    str(vocabulary), directory], check=True,
                   stdout=subprocess.DEVNULL)
    # The first shard holds nothing of the tables.
    files = sorted(directory.glob("*.safetensors"))[1:]
    for name in files:
        with open(name, "rb+") as file:
            os.fsync(file.fileno())
    return files


def probe(*words):
    done = subprocess.run([PROBE, *map(str, words)], check=True,
                          stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def warm(gib):
    """Touch so much memory, and give it back.  What a virtual machine has not
    used for a while its host has to find first, which takes longer than a load
    and would be taken for the way that comes first."""
    probe("pages", "huge", gib, len(os.sched_getaffinity(0)))


def rest(files, gib):
    """All reads begin alike: drives of virtual machines give more for a moment
    after a pause."""
    drive.drop(files)
    warm(gib)


class Engramd:
    """An engramd that loads one checkpoint again and again."""

    def __init__(self, checkpoint, threads=None, verify=False):
        loader = {"threads": threads} if threads else {}
        # Not beside the checkpoint: names of sockets are short.
        self.work = tempfile.TemporaryDirectory()
        self.sidecar = sidecar.Sidecar(pathlib.Path(self.work.name),
                                       checkpoint, None, None, loader=loader)
        self.params = {"checkpoint": str(checkpoint), "verify": verify}
        self.report = None

    def load(self):
        """Until it can be attached; then it is unloaded again."""
        client = self.sidecar.client
        began = time.monotonic()
        job = client.finish(client.call("load", table="run",
                                        **self.params)["job"])
        seconds = time.monotonic() - began
        if job["state"] != "done":
            sys.exit(f"bench_load.py: {job['error']['message']}")
        table = client.table("run")
        self.report = {**table["loader"], "locked": table["locked"],
                       "huge": sum(x["huge_bytes"] or 0
                                   for x in table["layers"]) / table["bytes"]}
        client.finish(client.call("unload", table="run")["job"])
        return {"bytes": job["bytes_total"], "seconds": seconds}

    def stop(self):
        self.sidecar.stop()
        self.work.cleanup()


def all_threads(args):
    if args.threads:
        return args.threads
    cores = len(os.sched_getaffinity(0))
    counts = [1]
    while counts[-1] * 2 < cores:
        counts.append(counts[-1] * 2)
    return counts + [cores] if cores > 1 else counts


def rates(samples):
    """Of {"bytes", "seconds"}: bytes a second."""
    values = [x["bytes"] / x["seconds"] for x in samples]
    return {"median": statistics.median(values), "min": min(values),
            "max": max(values), "samples": values}


def of_limit(samples):
    return drive.share([x["bytes"] / x["seconds"] for x in samples],
                       [x["limit"] for x in samples])


def safetensors(files):
    """A sample, or why there is none."""
    for module in "safetensors", "torch":
        if subprocess.run([sys.executable, "-c", f"import {module}"],
                          capture_output=True, check=False).returncode:
            return f"{sys.executable} has no {module}"
    done = subprocess.run([sys.executable, "-c", SAFETENSORS,
                           *map(str, files)], capture_output=True, text=True,
                          check=False)
    if done.returncode:
        return done.stderr.strip().splitlines()[-1]
    return json.loads(done.stdout)


# ---- the parts ----

def measure_drive(args, work):
    gib = args.gib or (0.05 if args.quick else 4)
    checkpoint = work / "drive"
    files = synth(checkpoint, gib)
    cores = len(os.sched_getaffinity(0))
    limit = drive.Drive(checkpoint, files, PROBE)
    engramd, checked = (Engramd(checkpoint, verify=verify)
                        for verify in (False, True))
    ways = {
        "preadv": lambda: probe("preadv", checkpoint, cores),
        "mmap": lambda: probe("mmap", checkpoint, 1),
        "mmap_threads": lambda: probe("mmap", checkpoint, cores),
        "safetensors": lambda: safetensors(files),
        "preadv_full": lambda: probe("preadv-full", checkpoint, cores),
        "mmap_full": lambda: probe("mmap-full", checkpoint, cores),
        "engramd": engramd.load, "engramd_checked": checked.load}

    # The full ways read into one copy and pack into another.
    pause = functools.partial(rest, files, 2 * gib)
    limit.find(pause)
    samples, limits, skipped = {name: [] for name in ways}, [], {}
    ways = {name: ways[name] for name in args.ways or ways}
    for turn in range(args.repeat or (1 if args.quick else 5)):
        shift = turn % len(ways)
        names = list(ways)
        for name in names[shift:] + names[:shift]:
            before = limit.limit(pause)
            pause()
            one = ways[name]()
            if isinstance(one, str):
                skipped[name] = one
                continue
            limits.append(before)
            one["limit"] = before
            samples[name].append(one)
            rate = one["bytes"] / one["seconds"]
            print(f"{name:16} {rate / 1e9:7.3f} GB/s; just before it",
                  ", ".join(f"{tool} {x / 1e9:.3f}"
                            for tool, x in before.items()), flush=True)
    engramd.stop()
    checked.stop()
    shutil.rmtree(checkpoint)
    for name, why in skipped.items():
        print(f"{name:16} skipped: {why}")
    tool = drive.fastest(limits)
    best = [x[tool] for x in limits]
    return {
        "gib": gib,
        "settings": [{"rate": rate, "setting": setting}
                          for rate, setting in limit.tried],
        "limit": {"tool": tool, "median": statistics.median(best),
                  "min": min(best), "max": max(best)},
        "ways": {name: {**rates(x), "of_limit": of_limit(x)}
                 for name, x in samples.items() if x},
        "skipped": skipped, "loader": engramd.report}


def measure_ramdisk(args, _):
    most = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / GIB / 5
    gib = args.ramdisk_gib or min(args.gib or (0.05 if args.quick else 4),
                                  most)
    result = {"gib": gib, "engramd": [], "memory": []}
    with tempfile.TemporaryDirectory(dir=args.ramdisk) as ramdisk:
        checkpoint = pathlib.Path(ramdisk) / "checkpoint"
        synth(checkpoint, gib)
        for threads in all_threads(args):
            engramd = Engramd(checkpoint, threads)
            runs = []
            for _ in range(args.repeat or (1 if args.quick else 5)):
                warm(gib)
                runs.append(engramd.load())
            one = rates(runs)
            engramd.stop()
            result["engramd"].append({"threads": threads, **one,
                                      "loader": engramd.report})
            print(f"ramdisk, {threads:3} threads {one['median'] / 1e9:7.2f} "
                  f"GB/s", flush=True)
    done = subprocess.run([MEMORY_PROBE, str(min(gib, 8)),
                           *map(str, all_threads(args))], check=True,
                          stdout=subprocess.PIPE, text=True)
    result["memory"] = [json.loads(x) for x in done.stdout.splitlines()]
    return result


def measure_curve(args, work):
    result = []
    for gib in args.sizes or ([0.02, 0.05] if args.quick else [1, 2, 4, 8]):
        checkpoint = work / "curve"
        files = synth(checkpoint, gib)
        limit = drive.Drive(checkpoint, files, PROBE)
        engramd = Engramd(checkpoint)
        pause = functools.partial(rest, files, gib)
        limit.find(pause)
        rounds = []
        for _ in range(args.repeat or (1 if args.quick else 3)):
            before = limit.limit(pause)
            pause()
            one = engramd.load()
            rounds.append({**one, "limit": before})
        engramd.stop()
        shutil.rmtree(checkpoint)
        table = rounds[0]["bytes"] / GIB
        seconds = statistics.median(x["seconds"] for x in rounds) / table
        result.append({"gib": table, "seconds_per_gib": seconds,
                       "of_limit": of_limit(rounds), "rounds": rounds,
                       "loader": engramd.report})
        print(f"{table:6.2f} GiB  {seconds:.3f} s a GiB  "
              f"{result[-1]['of_limit'] * 100:.1f} % of the drive", flush=True)
    return result


def measure_pages(args, _):
    gib = min(args.gib or (0.05 if args.quick else 4), 8)
    result = []
    for threads in all_threads(args):
        for pages in "small", "huge":
            warm(gib)
            runs = [probe("pages", pages, gib, threads)
                    for _ in range(args.repeat or (1 if args.quick else 5))]
            best = {key: min(x[key] for x in runs) / (runs[0]["bytes"] / GIB)
                    for key in ("touch_seconds", "pin_seconds",
                                "unpin_seconds")}
            result.append({"pages": pages, "threads": threads,
                           "huge": runs[0]["huge_bytes"] / runs[0]["bytes"],
                           "per_gib": best, "runs": runs})
            print(f"{pages:6} pages, {threads:3} threads: touch "
                  f"{1 / best['touch_seconds']:6.2f} GiB/s, pin "
                  f"{best['pin_seconds'] * 1e3:7.2f} ms a GiB", flush=True)
    return {"gib": gib, "runs": result}


def main():
    args = parser().parse_args()
    sidecar.engramd.DEADLINE = 3600
    environment, result = measure.machine(), {}
    with tempfile.TemporaryDirectory(dir=args.dir) as work:
        for part in args.parts:
            print(f"-- {part}", flush=True)
            result[part] = globals()[f"measure_{part}"](args,
                                                        pathlib.Path(work))
            # each time: hours of tens of GiB may be cut short
            measure.write(args, "load", {"environment": environment, **result})


if __name__ == "__main__":
    main()
