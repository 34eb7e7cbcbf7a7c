#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Start-up and host memory of 1, 2 and 4 processes with a table each, against
the same processes attached to one that engramd holds.

  own       each reads the checkpoint into memory of its own; on a GPU into
            pinned memory of torch, as engines do
  attached  each attaches, and on a GPU registers; engramd has loaded before

Seconds from the start of all at once until the last has looked rows up; memory
as the drop of MemAvailable, and as the sum of the proportional set sizes (PSS)
with engramd's among them.  Both grow from idle processes that have imported
what they need (on a GPU with a context).  The checkpoint should be where
reading is fast (--dir): that favours `own`.
"""
import pathlib
import statistics
import sys

import measure
import sidecar
from bench_attach import Process, make_checkpoint, places, whole_memory

HERE = pathlib.Path(__file__).resolve().parent
WORKER = HERE / "process_worker.py"


def parser():
    result = measure.parser(__doc__, table=False)
    result.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    result.add_argument("--dir", default="/dev/shm",
                        help="where the checkpoint is written, best a tmpfs "
                             "(%(default)s)")
    result.add_argument("--gib", type=float,
                        help="size of the table (16; with --quick 0.125)")
    result.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4],
                        help="(1 2 4)")
    result.add_argument("--repeat", type=int,
                        help="(3; with --quick 1)")
    return result


class Worker(Process):
    def __init__(self, args):
        library = pathlib.Path(args.lib).resolve().parent
        super().__init__([sys.executable, WORKER, args.device],
                         ENGRAM_LIB_DIR=str(library))


def used():
    """Bytes of the machine that are neither free nor to be had at once."""
    text = pathlib.Path("/proc/meminfo").read_text(encoding="ascii")
    found = {name: 1024 * int(rest.split()[0]) for name, rest in (
        line.split(":") for line in text.splitlines())}
    return found["MemTotal"] - found["MemAvailable"]


def at_once(workers, line):
    for worker in workers:
        worker.tell(line)
    return [worker.hear() for worker in workers]


class Server:
    """engramd with the table loaded, and what it has taken for that."""

    def __init__(self, work, checkpoint):
        before = used()
        self.sidecar = sidecar.Sidecar(work, checkpoint, None, None)
        self.idle_pss = self.pss()
        self.load_seconds = self.sidecar.load()
        self.bytes = used() - before

    def pss(self):
        return whole_memory(self.sidecar.process.pid)["pss"]


def one_run(args, count, line, server=None):
    """`line` to so many new processes; what they took."""
    workers = [Worker(args) for _ in range(count)]
    try:
        idle = [worker.hear() for worker in workers]
        before = used()
        done = at_once(workers, line)
        memory = used() - before
        held = at_once(workers, "memory")
        pss = sum(now["Pss"] - then["Pss"] for now, then in zip(held, idle))
        if server:
            memory += server.bytes
            pss += server.pss() - server.idle_pss
        return {"seconds": max(one["seconds"] for one in done),
                "seconds_each": [one["seconds"] for one in done],
                "memory_bytes": memory, "pss_bytes": pss,
                "table_bytes": done[0]["bytes"],
                "rows": {one["check"] for one in done}}
    finally:
        for worker in workers:
            worker.stop()


def summary(found):
    """Of runs: the medians, and all seconds."""
    return {"seconds": statistics.median(one["seconds"] for one in found),
            "all_seconds": [one["seconds"] for one in found],
            "seconds_each": found[0]["seconds_each"],
            "memory_bytes": statistics.median(one["memory_bytes"]
                                              for one in found),
            "pss_bytes": statistics.median(one["pss_bytes"]
                                           for one in found)}


def ratios(own, attached, load_seconds):
    return {
        "time": own["seconds"] / attached["seconds"],
        "time_with_load": own["seconds"] / (attached["seconds"]
                                            + load_seconds),
        "memory": own["memory_bytes"] / attached["memory_bytes"],
        "pss": own["pss_bytes"] / attached["pss_bytes"]}


def run(args, scratch, work):
    checkpoint = scratch / "checkpoint"
    make_checkpoint(args, checkpoint)

    def runs(line, server=None):
        return {count: [one_run(args, count, line, server)
                        for _ in range(args.repeat)]
                for count in args.processes}

    own = runs(f"own {checkpoint}")
    server = Server(work, checkpoint)
    try:
        shared = runs(f"attach {server.sidecar.socket}", server)
    finally:
        server.sidecar.stop()
    every = [one for kind in (own, shared) for found in kind.values()
             for one in found]
    if len(set.union(*(one["rows"] for one in every))) != 1:
        raise RuntimeError("the processes have different rows")
    result = {"gib": args.gib, "device": args.device,
              "table_bytes": every[0]["table_bytes"],
              "load_seconds": server.load_seconds,
              "environment": measure.environment()
              if args.device == "cuda" else measure.machine(),
              "processes": []}
    for count in args.processes:
        one = {"processes": count, "own": summary(own[count]),
               "attached": summary(shared[count])}
        one["ratios"] = ratios(one["own"], one["attached"],
                               server.load_seconds)
        result["processes"].append(one)
        print(f"{count} processes: " + "; ".join(
            f"{name} {one[name]['seconds']:.2f} s, "
            f"{one[name]['memory_bytes'] / 2**30:.2f} GiB, PSS "
            f"{one[name]['pss_bytes'] / 2**30:.2f}"
            for name in ("own", "attached")), flush=True)
    return result


def main():
    args = parser().parse_args()
    args.gib = args.gib or (0.125 if args.quick else 16)
    args.repeat = args.repeat or (1 if args.quick else 3)
    if args.device == "cuda":
        measure.require_gpu()
    with places(args) as (scratch, work):
        measure.write(args, "processes", run(args, scratch, work))


if __name__ == "__main__":
    main()
