# SPDX-License-Identifier: Apache-2.0
"""row_reader.c as a process, and what it has counted."""
import mmap
import os
import signal
import subprocess

import engramd

BINARY = engramd.BUILD / "tests" / "row_reader"
FIELDS = ("end", "rows", "steps", "wrong", "mixed", "attaches", "generation",
          "unknown", "failures", "idle", "refreshes", "seeds", "parks")


class RowReader:
    """`known`: content ids by the seed of their rows."""

    def __init__(self, sidecar, table, known, binary=BINARY, **environment):
        path = sidecar.dir / f"reader-{os.urandom(4).hex()}"
        path.write_bytes(bytes(8 * len(FIELDS)))
        with open(path, "r+b") as file:
            self.map = mmap.mmap(file.fileno(), 0)
        with open(sidecar.log_file, "ab") as log:
            self.process = subprocess.Popen(
                [binary, sidecar.socket, table, path,
                 *(f"{content}={seed}" for seed, content in known.items())],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={**os.environ, **environment})

    def __getattr__(self, name):
        at = 8 * FIELDS.index(name)
        return int.from_bytes(self.map[at:at + 8], "little")

    def counts(self):
        return {name: getattr(self, name) for name in FIELDS[1:]}

    def goes_on(self, steps=20):
        """It reads, from now on."""
        want = self.steps + steps
        engramd.until(lambda: self.steps >= want or
                      self.process.poll() is not None, "rows are read")
        self.check()

    def attached(self, times):
        engramd.until(lambda: self.attaches >= times or
                      self.process.poll() is not None, "it attaches")
        self.check()

    def check(self):
        """All rows were those of their generation."""
        counts = self.counts()
        assert self.process.poll() is None, counts
        assert not any(counts[name] for name in
                       ("wrong", "mixed", "unknown", "failures")), counts

    def kill(self):
        self.process.kill()
        self.process.wait(engramd.DEADLINE)

    def end(self):
        """Detach and leave; what was read so far."""
        self.check()
        # First: it would undo the SIGSTOP by which LeakSanitizer attaches to
        # a process that is ending, and is waited for without end.
        self.process.send_signal(signal.SIGCONT)
        self.map[0] = 1
        assert self.process.wait(engramd.DEADLINE) == 0
        return self.rows
