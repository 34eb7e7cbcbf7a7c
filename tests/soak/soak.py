#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Clients read and check every row while the table is replaced back to back,
and engramd and clients are killed, stopped and started at random.

    tests/soak/soak.py [--seconds 600] [--seed N] [--clients 4]

Ends with a line of JSON: what was done, and how many rows were checked.
Exits non-zero on any wrong row, any step that mixed generations, and on any
segment, descriptor or locked byte that is left.
"""
import argparse
import collections
import json
import os
import pathlib
import random
import signal
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "integration")]
import engramd  # noqa: E402  pylint: disable=wrong-import-position
import row_reader  # noqa: E402  pylint: disable=wrong-import-position

# Long enough that chaos meets a load in its middle.
SHAPE = ("--layers", "1,14", "--heads", "4", "--max-ngram", "3", "--dim",
         "64", "--shards", "3", "--engram-vocab-size", "20000")
SEEDS = range(4)
TABLE = "demo"
# A call to a sidecar that dies or goes: nothing is wrong.
GONE = (OSError, AssertionError)


def point_at(link, directory):
    """Replace the symbolic link, atomically."""
    temporary = link.with_name(link.name + ".new")
    temporary.symlink_to(directory)
    os.replace(temporary, link)


class Replacing(threading.Thread):
    """Replaces the table, again and again, through reloads or, where the
    sidecar has none, by unloading and loading it."""

    def __init__(self, soak):
        super().__init__(daemon=True)
        self.soak = soak
        self.random = random.Random(soak.options.seed + 1)
        self.done = collections.Counter()
        self.faults = []
        self.end = False

    def run(self):
        while not self.end:
            try:
                with self.soak.sidecar.connection() as client:
                    client.greet()
                    while not self.end:
                        self.once(client)
            except engramd.RpcError as error:
                self.refused(error)
            except GONE:
                self.done["interrupted"] += 1
            time.sleep(0.01)

    def refused(self, error):
        """What a sidecar says that has just started, or that stops."""
        if error.name not in ("Busy", "Draining", "NotReady", "Canceled"):
            self.faults.append(str(error))

    def once(self, client):
        soak = self.soak
        point_at(soak.link, soak.directories[self.random.choice(SEEDS)])
        if soak.reloads:
            self.finish(client, "reload")
            return
        self.finish(client, "unload")
        self.finish(client, "load")

    def finish(self, client, method):
        job = client.call(method, table=TABLE)["job"]
        if job is not None:
            job = client.finish(job)
            if job["state"] == "failed":
                self.faults.append(json.dumps(job["error"]))
            self.done[f"{method} {job['state']}"] += 1


class Soak:
    def __init__(self, options, directory):
        self.options = options
        self.random = random.Random(options.seed)
        self.dir = pathlib.Path(directory)
        self.directories = {seed: engramd.synth(
            self.dir / f"seed{seed}", *SHAPE, "--seed", str(seed))
            for seed in SEEDS}
        self.known = self.learn()
        self.link = self.dir / "model"
        self.link.symlink_to(self.directories[0])
        self.sidecar = engramd.Sidecar(
            self.dir, [{"name": TABLE, "checkpoint": str(self.link)}],
            log={"level": "info"})
        self.reloads = self.has_reload()
        self.done = collections.Counter()
        self.totals = collections.Counter()
        self.readers = []

    def learn(self):
        """Content ids by seed; a sidecar each, so that no load sees what the
        soak does."""
        sidecar = engramd.Sidecar(
            self.dir, [{"name": f"seed{seed}", "checkpoint": str(path)}
                       for seed, path in self.directories.items()])
        client = sidecar.client()
        known = {seed: client.have(f"seed{seed}")["content_id"]
                 for seed in SEEDS}
        sidecar.stop()
        assert len(set(known.values())) == len(known)
        return known

    def has_reload(self):
        with self.sidecar.connection() as client:
            client.greet()
            methods = client.call("rpc.discover")["methods"]
        return "reload" in {method["name"] for method in methods}

    # ---- what happens ----

    def start_reader(self):
        self.readers.append(row_reader.RowReader(self.sidecar, TABLE,
                                                 self.known))

    def drop(self, reader):
        """Add up what it has read, and forget it."""
        self.totals.update({name: count for name, count
                            in reader.counts().items()
                            if name != "generation"})
        self.readers.remove(reader)

    def start_sidecar(self):
        self.sidecar.start(wait=False)

    def kill_sidecar(self):
        self.sidecar.kill()
        time.sleep(self.random.choice((0, 0, 0.01, 0.1, 0.3)))
        self.start_sidecar()

    def kill_at_start(self):
        """One that may not have come up yet."""
        self.kill_sidecar()
        time.sleep(self.random.uniform(0, 0.05))
        self.kill_sidecar()

    def stop_sidecar(self):
        self.sidecar.signal(signal.SIGSTOP)
        time.sleep(self.random.uniform(0, 0.3))
        if self.random.random() < 0.3:
            self.kill_sidecar()
        else:
            self.sidecar.signal(signal.SIGCONT)

    def restart_sidecar(self):
        """As for an upgrade: the tables stay."""
        try:
            with self.sidecar.connection() as client:
                client.greet()
                client.call("shutdown", keep=self.random.random() < 0.7)
        except (engramd.RpcError, *GONE):
            self.sidecar.signal(signal.SIGTERM)
        code = self.sidecar.wait()
        assert code in (0, -signal.SIGTERM), f"exit {code}"
        self.start_sidecar()

    def kill_reader(self):
        reader = self.random.choice(self.readers)
        reader.kill()
        self.drop(reader)
        self.start_reader()

    def stop_reader(self):
        reader = self.random.choice(self.readers)
        reader.process.send_signal(signal.SIGSTOP)
        time.sleep(self.random.uniform(0, 0.3))
        if self.random.random() < 0.3:
            reader.kill()
            self.drop(reader)
            self.start_reader()
        else:
            reader.process.send_signal(signal.SIGCONT)

    def leave_half_way(self):
        """Ask for the table and go before the answer."""
        try:
            for _ in range(10):
                with self.sidecar.connection() as client:
                    client.request("attach", table=TABLE)
        except GONE:
            pass

    def watch(self):
        """Nothing but time for replacements."""
        time.sleep(self.random.uniform(0, 0.5))

    ACTIONS = {"kill_sidecar": 3, "kill_at_start": 1, "stop_sidecar": 3,
               "restart_sidecar": 2, "kill_reader": 3, "stop_reader": 3,
               "leave_half_way": 2, "watch": 4}

    def check(self):
        for reader in self.readers:
            reader.check()
        code = self.sidecar.process.poll()
        assert code is None, f"engramd ended with {code}"

    def run(self):
        for _ in range(self.options.clients):
            self.start_reader()
        replacing = Replacing(self)
        replacing.start()
        end = time.monotonic() + self.options.seconds
        while time.monotonic() < end:
            name, = self.random.choices(list(self.ACTIONS),
                                        self.ACTIONS.values())
            getattr(self, name)()
            self.done[name] += 1
            time.sleep(self.random.uniform(0, 0.2))
            self.check()
        replacing.end = True
        replacing.join(engramd.DEADLINE)
        assert not replacing.is_alive(), "a replacement never ended"
        self.settle()
        assert not replacing.faults, replacing.faults[:10]
        return {**self.done, **replacing.done}

    # ---- what is left ----

    def settle(self):
        """Everybody reads what is current, and holds that alone; then all
        goes."""
        engramd.until(self.sidecar.answers, "the sidecar answers")
        with self.sidecar.connection() as client:
            client.greet()
            table = client.have(TABLE)
            engramd.until(lambda: client.table(TABLE)["job"] is None,
                          "jobs have ended")
            engramd.until(
                lambda: client.table(TABLE)["leases"] == len(self.readers),
                "every reader has one lease")
            engramd.until(lambda: len(self.sidecar.segments()) == 2,
                          "one generation is left")
            for reader in self.readers:
                self.check_reader(reader, table)
            for reader in list(self.readers):
                reader.end()
                self.drop(reader)
            engramd.until(lambda: client.table(TABLE)["leases"] == 0,
                          "leases end")
            client.finish(client.call("unload", table=TABLE)["job"])
            self.check_sidecar(client)
        self.sidecar.stop()

    def check_reader(self, reader, table):
        engramd.until(lambda: reader.generation == table["generation"],
                      "it has what is current")
        reader.goes_on()
        pid = reader.process.pid
        engramd.until(lambda: len(self.mapped(pid)) ==
                      2 * len(table["layers"]) + 1,
                      f"old mappings are gone: {self.mapped(pid)}")
        # three of its own, a socket and an eventfd
        engramd.until(lambda: len(os.listdir(f"/proc/{pid}/fd")) == 5,
                      os.listdir(f"/proc/{pid}/fd"))
        assert engramd.proc_status(pid, "VmLck") == 0

    def mapped(self, pid):
        """Mappings of this instance, among them what has no name now."""
        return [line for line in
                pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines()
                if f"engramd.{self.sidecar.instance}." in line]

    def check_sidecar(self, client):
        fresh = engramd.Sidecar(self.dir, [
            {"name": TABLE, "checkpoint": str(self.link),
             "load": "on_demand"}])
        with fresh.connection() as other:
            other.greet()
            other.load(TABLE)
            other.finish(other.call("unload", table=TABLE)["job"])
            usual = fresh.fd_count()
        fresh.stop()
        assert client.table(TABLE)["state"] == "absent"
        assert self.sidecar.segments() == []
        assert self.sidecar.locked_bytes() == 0
        engramd.until(lambda: self.sidecar.connections() == 1,
                      "all have hung up")
        assert self.sidecar.fd_count() == usual

    def abandon(self):
        """After a fault: nothing of ours goes on."""
        for reader in self.readers:
            reader.kill()
        process = self.sidecar.process
        if process.poll() is None:
            process.kill()
            process.wait(engramd.DEADLINE)
        for name in self.sidecar.names():
            (engramd.SHM / name).unlink()


def soak(options):
    """The report; raises AssertionError."""
    with tempfile.TemporaryDirectory(prefix="engram-soak-") as directory:
        it = Soak(options, directory)
        try:
            done = it.run()
        except BaseException:
            print(it.sidecar.log()[-8000:], file=sys.stderr)
            it.abandon()
            raise
        return {"seed": options.seed, "seconds": options.seconds,
                "reload": it.reloads, **done, **it.totals}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--clients", type=int, default=4)
    options = parser.parse_args()
    if options.seed is None:
        options.seed = int.from_bytes(os.urandom(4), "little")
    print(f"soak: --seed {options.seed}", flush=True)
    print(json.dumps(soak(options)))


if __name__ == "__main__":
    main()
