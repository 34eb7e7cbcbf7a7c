# SPDX-License-Identifier: Apache-2.0
"""An engramd whose /dev/shm is its own, on pages of one size: a tmpfs in a
mount namespace.  Clients get descriptors, and need not see it."""
import itertools
import json
import os
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/integration"))

import engramd  # noqa: E402

MOUNT = """
set -e
mount --bind "$1" "$2"
mount -t tmpfs -o "$3" engram-bench /dev/shm
shift 3
exec "$@"
"""


_serial = itertools.count()


class CannotMount(Exception):
    pass


def namespace(*command):
    return ["unshare", "--mount", "--propagation", "private", *command]


def check_mounts(huge):
    """May mounts be made here, and with pages of that kind?"""
    done = subprocess.run(
        namespace("mount", "-t", "tmpfs", "-o", f"huge={huge},size=16m",
                  "engram-bench", "/dev/shm"), capture_output=True, text=True)
    if done.returncode:
        raise CannotMount("a mount namespace with a tmpfs on /dev/shm: "
                          + done.stderr.strip())


class Sidecar:
    def __init__(self, work, checkpoint, huge, size, **more):
        """`more` of the configuration.  `huge` is an option of tmpfs, always
        or never (then engramd does not ask for huge pages either), or None:
        /dev/shm is used as it is."""
        if huge == "never":
            more["memory"] = {**more.get("memory", {}), "huge_pages": "off"}
        self.instance = (f"bench-{os.getpid()}-{next(_serial)}-"
                         f"{huge or 'shm'}")
        self.socket = work / f"{self.instance}.sock"
        point = work / "checkpoint"
        point.mkdir(exist_ok=True)
        config = work / f"{self.instance}.json"
        config.write_text(json.dumps({
            "instance": self.instance, "socket": {"path": str(self.socket)},
            "tables": [{"name": "bench", "load": "on_demand",
                        "verify": False,
                        "checkpoint": str(point if huge else checkpoint)}],
            **more}))
        command = [engramd.ENGRAMD, "-c", config]
        if huge:
            command = namespace(
                "sh", "-c", MOUNT, "sh", checkpoint, point,
                f"huge={huge},mode=1777,size={size}", *command)
        self.log = work / f"{self.instance}.log"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log,
                                            stdin=subprocess.DEVNULL)
        try:
            self.client = self.connect()
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise

    def connect(self):
        end = time.monotonic() + 30
        while time.monotonic() < end:
            if self.process.poll() is not None:
                break
            try:
                return engramd.Client(self.socket).greet()
            except OSError:
                time.sleep(0.01)
        raise RuntimeError("engramd does not answer:\n"
                           + self.log.read_text(errors="replace"))

    def load(self):
        """Seconds."""
        began = time.monotonic()
        self.client.load("bench")
        return time.monotonic() - began

    def stop(self):
        self.client.close()
        self.process.terminate()
        self.process.wait()
