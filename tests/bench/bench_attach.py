#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What attaching to a table costs: a real engramd, and processes that register
the whole table or one of eight ranks of it, on small and on huge pages.

Seconds for each GiB registered, alone and eight at once; device memory that the
mapping takes; what the processes hold of the table.  Needs no torch.
"""
import contextlib
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

import measure
import sidecar

ROOT = pathlib.Path(__file__).resolve().parents[2]
RANKS = 8
LAYERS = 2
COLUMNS = 24
RECORD = 264
MEMORY = ("Rss", "Pss", "Private_Clean", "Private_Dirty", "Locked",
          "ShmemPmdMapped")


def parser():
    result = measure.parser(__doc__, table=False)
    result.add_argument("--dir", default="/dev/shm",
                        help="where the checkpoint is written, best a tmpfs "
                             "(%(default)s)")
    result.add_argument("--gib", type=float,
                        help="size of the table (16; with --quick 0.25)")
    result.add_argument("--repeat", type=int,
                        help="times that each is attached (3; with --quick 1)")
    result.add_argument("--writable-registration", action="store_true",
                        help="register without the read-only flag")
    result.add_argument("--probe", type=pathlib.Path,
                        default=sidecar.engramd.BUILD / "tests/attach_probe",
                        help="the process that attaches (%(default)s); "
                             "attach_probe_fake tries this without a GPU")
    return result


class Process:
    """One that answers commands in JSON lines; ask() is tell() and hear()."""

    def __init__(self, command, **environment):
        self.command = command
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, **environment})

    def tell(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def hear(self):
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.command[0]} ended with "
                               f"{self.process.wait()}")
        return json.loads(line)

    def ask(self, command):
        self.tell(command)
        return self.hear()

    def stop(self):
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


class Probe(Process):
    """An attach_probe."""

    def __init__(self, args, socket):
        command = [args.probe, socket, "bench"]
        if args.writable_registration:
            command.append("writable")
        library = str(pathlib.Path(args.lib).resolve().parent)
        paths = [library, os.environ.get("LD_LIBRARY_PATH")]
        super().__init__(command, LD_LIBRARY_PATH=":".join(filter(None,
                                                                  paths)))


def kib_of(lines, out):
    """Add the figures of smaps lines to `out`, in bytes."""
    for line in lines:
        name, _, value = line.partition(":")
        if name in MEMORY:
            out[name.lower()] = out.get(name.lower(), 0) \
                + int(value.split()[0]) * 1024
    return out


def whole_memory(pid):
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
        return kib_of(file, {})


def table_memory(pid, instance):
    """Of the mappings of the table's segments alone."""
    found = {name.lower(): 0 for name in MEMORY}
    ours = False
    with open(f"/proc/{pid}/smaps", encoding="utf-8",
              errors="replace") as file:
        for line in file:
            first = line.split(maxsplit=1)[0]
            if not first.endswith(":"):
                ours = f"engramd.{instance}.bench." in line
            elif ours:
                kib_of([line], found)
    return found


def pinned(pid):
    """Bytes that the kernel counts as pinned or locked by the process."""
    found = {}
    with open(f"/proc/{pid}/status", encoding="utf-8",
              errors="replace") as file:
        for line in file:
            name, _, value = line.partition(":")
            if name in ("VmPin", "VmLck"):
                found[name.lower()] = int(value.split()[0]) * 1024
    return found


def spread(values):
    values = list(values)
    return {"median": statistics.median(values), "min": min(values),
            "max": max(values), "samples": len(values)}


def summary(attached, detached, device_bytes):
    """Of answers to "attach" and "detach", equally many."""
    gib = attached[0]["registered_bytes"] / 2**30
    return {
        "gib": gib,
        "chunks": attached[0]["chunks"],
        "read_only": attached[0]["read_only"],
        "register_s_per_gib": spread(
            one["register_seconds"] / (one["registered_bytes"] / 2**30)
            for one in attached),
        "attach_seconds": spread(one["attach_seconds"] for one in attached),
        "ready_seconds": spread(one["ready_seconds"] for one in attached),
        "detach_seconds": spread(one["detach_seconds"] for one in detached),
        "handle_device_bytes": attached[0]["handle_device_bytes"],
        "device_bytes": device_bytes}


# A process may keep page tables for the next time: device memory is that of the
# first.


def one_process(probe, ranks, repeat):
    attached, detached = [], []
    for _ in range(repeat):
        attached.append(probe.ask(f"attach 0 {ranks}"))
        detached.append(probe.ask("detach"))
    return summary(attached, detached, attached[0]["device_free_before"]
                   - attached[0]["device_free"])


def all_ranks(probes, repeat):
    """Each in a process of its own, at once."""
    attached, detached, taken = [], [], []
    for _ in range(repeat):
        before = probes[0].ask("memory")["device_free"]
        for rank, probe in enumerate(probes):
            probe.tell(f"attach {rank} {len(probes)}")
        attached += [probe.hear() for probe in probes]
        after = probes[0].ask("memory")["device_free"]
        taken.append((before - after) / len(probes))
        for probe in probes:
            probe.tell("detach")
        detached += [probe.hear() for probe in probes]
    return summary(attached, detached, taken[0])


def memory_held(probes, instance):
    """By one process with the whole table, and by one of two."""
    found = []
    idle = whole_memory(probes[0].process.pid)
    for count, probe in enumerate(probes[:2], 1):
        probe.ask("attach 0 1")
        pid = probes[0].process.pid
        whole = whole_memory(pid)
        found.append({
            "processes": count, "table": table_memory(pid, instance),
            "whole": whole, "pinned": pinned(pid),
            "grown": {name: whole[name] - idle.get(name, 0)
                      for name in whole}})
    for probe in probes[:2]:
        probe.ask("detach")
    return found


def measure_pages(args, work, checkpoint, huge):
    size = int(args.gib * 2**30 * 1.02) + (256 << 20)
    with contextlib.ExitStack() as stack:
        server = sidecar.Sidecar(work, checkpoint, huge, size)
        stack.callback(server.stop)
        probes = []
        for _ in range(RANKS + 2):
            probe = Probe(args, server.socket)
            stack.callback(probe.stop)
            probes.append(probe)
            probe.tell("start")
        # contexts start while the table is loaded
        load_seconds = server.load()
        device = [probe.hear() for probe in probes][0]
        mapped = table_memory(server.process.pid, server.instance)
        return device, {
            "pages": {"always": "2 MiB", "never": "4 KiB",
                      None: "of /dev/shm"}[huge],
            "tmpfs_huge": huge, "load_seconds": load_seconds,
            "sidecar": mapped,
            "whole": one_process(probes[0], 1, args.repeat),
            "rank": one_process(probes[1], RANKS, args.repeat),
            "ranks": all_ranks(probes[2:], args.repeat),
            "memory": memory_held(probes, server.instance)}


def make_checkpoint(args, directory):
    rows = int(args.gib * 2**30 / (LAYERS * COLUMNS * RECORD))
    subprocess.run([sidecar.engramd.SYNTH, "--engram-vocab-size", str(rows),
                    directory], check=True)


def kinds():
    """(huge= of tmpfs, or None for a plain /dev/shm; why not)."""
    for huge in ("never", "always"):
        try:
            sidecar.check_mounts(huge)
        except (OSError, sidecar.CannotMount) as reason:
            yield huge, str(reason)
            if huge == "never":
                yield None, None
        else:
            yield huge, None


def run(args, scratch, work):
    result = {"gib": args.gib, "pages": [], "skipped": {}}
    checkpoint = scratch / "checkpoint"
    make_checkpoint(args, checkpoint)
    for huge, why_not in kinds():
        if why_not:
            print(f"tmpfs huge={huge}: skipped: {why_not}", file=sys.stderr)
            result["skipped"][f"tmpfs huge={huge}"] = why_not
            continue
        device, found = measure_pages(args, work, checkpoint, huge)
        result["pages"].append(found)
        result["environment"] = {
            **measure.machine(), "driver_cuda": device["driver_cuda"],
            "cuda": f"{device['cuda'] // 1000}.{device['cuda'] % 1000 // 10}"}
        print(f"{found['pages']} pages: whole "
              f"{found['whole']['register_s_per_gib']['median'] * 1e3:.1f} "
              "ms a GiB, of eight at once "
              f"{found['ranks']['register_s_per_gib']['median'] * 1e3:.1f}",
              flush=True)
    return result


def main():
    args = parser().parse_args()
    args.gib = args.gib or (0.25 if args.quick else 16)
    args.repeat = args.repeat or (1 if args.quick else 3)
    with places(args, args.probe) as (scratch, work):
        measure.write(args, "attach", run(args, scratch, work))


@contextlib.contextmanager
def places(args, *programs):
    """Folders for a checkpoint and for the rest, once all has been built."""
    for path in (sidecar.engramd.ENGRAMD, sidecar.engramd.SYNTH, *programs):
        if not path.exists():
            sys.exit(f"{path} is not there: run make")
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="engram-bench-",
                                            dir=args.dir))
    work = pathlib.Path(tempfile.mkdtemp(prefix="engram-bench-", dir="/tmp"))
    try:
        yield scratch, work
    finally:
        shutil.rmtree(scratch)
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
