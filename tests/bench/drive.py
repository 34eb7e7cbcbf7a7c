# SPDX-License-Identifier: Apache-2.0
"""How fast a drive gives a checkpoint's files to whoever only wants to read them.

fio where it is installed, dd with O_DIRECT otherwise, and load_probe, which reads
into huge pages: with small ones a read of 1 MiB is 256 pieces to a drive, more
than many take at once.  The fastest of several settings of each is the limit.
"""
import json
import pathlib
import shutil
import statistics
import subprocess
import sys
import time

MIB = 1 << 20
# Readers at once, and for fio what each has in flight.
FIO = [(1, 32, "1M"), (4, 16, "1M"), (8, 8, "1M"), (4, 8, "4M")]
DD = [(1, "4M"), (4, "4M"), (8, "4M"), (16, "1M")]
RAW = [(1,), (4,), (16,)]


def size(files):
    return sum(pathlib.Path(x).stat().st_size for x in files)


def drop(files):
    """Out of the page cache, if they are there."""
    for name in files:
        subprocess.run(["dd", f"of={name}", "oflag=nocache", "conv=notrunc",
                        "count=0", "status=none"], check=True)


def run_fio(files, jobs, depth, block):
    """Bytes a second."""
    share = min(pathlib.Path(x).stat().st_size for x in files) // jobs
    share -= share % (4 * MIB)
    done = subprocess.run(
        ["fio", "--name=read", f"--filename={':'.join(map(str, files))}",
         "--readonly", "--rw=read", f"--bs={block}", f"--iodepth={depth}",
         f"--numjobs={jobs}", "--direct=1", "--ioengine=io_uring",
         "--file_service_type=sequential", f"--offset_increment={share}",
         f"--io_size={share * len(files)}", "--group_reporting",
         "--output-format=json"],
        capture_output=True, text=True, check=True)
    return json.loads(done.stdout)["jobs"][0]["read"]["bw_bytes"]


def ranges(files, readers, block):
    """(file, first block, blocks): the files in equal parts."""
    parts = []
    for name in files:
        blocks = pathlib.Path(name).stat().st_size // block
        for i in range(readers):
            begin, end = blocks * i // readers, blocks * (i + 1) // readers
            parts.append((i, name, begin, end - begin))
    return parts


def run_dd(files, readers, block):
    """Bytes a second.  Each reader reads its part of each file."""
    unit = int(block[:-1]) * MIB
    commands = {i: [] for i in range(readers)}
    for i, name, begin, count in ranges(files, readers, unit):
        commands[i].append(f"dd if='{name}' of=/dev/null bs={block} "
                           f"skip={begin} count={count} iflag=direct "
                           "status=none")
    began = time.monotonic()
    running = [subprocess.Popen(["sh", "-ec", "\n".join(x)])
               for x in commands.values()]
    if any([process.wait() for process in running]):
        sys.exit("drive.py: dd failed: are there direct reads here?")
    seconds = time.monotonic() - began
    return sum(count for *_, count in ranges(files, readers, unit)) * unit \
        / seconds


def run_raw(probe, checkpoint, threads):
    """Bytes a second."""
    done = subprocess.run([probe, "raw", checkpoint, str(threads)],
                          check=True, stdout=subprocess.PIPE, text=True)
    one = json.loads(done.stdout)
    return one["bytes"] / one["seconds"]


class Drive:
    """What reads these files fastest, once all settings were tried."""

    def __init__(self, checkpoint, files, probe):
        self.checkpoint, self.probe = checkpoint, probe
        self.files = [str(x) for x in files]
        tool = ("fio", FIO) if shutil.which("fio") else ("dd", DD)
        self.settings = [(tool[0], *x) for x in tool[1]] \
            + [("raw", *x) for x in RAW]
        self.tried = []

    def read(self, setting):
        tool, *more = setting
        if tool == "raw":
            return run_raw(self.probe, self.checkpoint, *more)
        return (run_fio if tool == "fio" else run_dd)(self.files, *more)

    def find(self, before=lambda: None):
        """Keep the fastest setting of each tool; call `before` before each.
        The best rate."""
        for setting in self.settings:
            before()
            self.tried.append((self.read(setting), setting))
        best = {}
        for rate, setting in sorted(self.tried):
            best[setting[0]] = setting
        self.settings = list(best.values())
        return max(self.tried)[0]

    def limit(self, before=lambda: None):
        """Bytes a second by tool."""
        rates = {}
        for setting in self.settings:
            before()
            rates[setting[0]] = self.read(setting)
        return rates


def share(rates, limits):
    """Of the drive's limit: what is read in each round beside what each tool
    got just before it.  The median over the rounds, beside the fastest tool:
    not beside the luckier one of each round, which would make a limit of the
    drive's noise."""
    return min(statistics.median(rate / limit[tool]
                                 for rate, limit in zip(rates, limits))
               for tool in limits[0])


def fastest(limits):
    """The tool that is, by its median."""
    return max(limits[0], key=lambda tool: statistics.median(
        limit[tool] for limit in limits))
