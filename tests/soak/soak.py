#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Clients read and check every row while their tables are reloaded back to
back, and engramd and clients are killed, stopped and started at random.

One table is reloaded beside the generation that is lent, now and then held
until it is published or taken back again; another one drains first, the third
is written in place.

    tests/soak/soak.py [--seconds 600] [--seed N] [--clients 4]
                       [--readers row_reader row_reader_cuda]

Ends with a line of JSON: what was done, and how many rows were checked.
Exits non-zero on any wrong row, any step that mixed generations, and on any
segment, descriptor or locked byte that is left.
"""
import argparse
import collections
import itertools
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
BESIDE, DRAINED, PLACED = "beside", "drained", "placed"
RELOAD = {BESIDE: {"mode": "beside", "retain_seconds": 1},
          # who is stopped for longer holds it up
          DRAINED: {"mode": "drain_first", "drain_seconds": 5},
          # and who is stopped for longer than that reads what it must not
          PLACED: {"mode": "in_place", "settle_seconds": 2,
                   "drain_seconds": 5}}
# A sidecar that has just started, or that stops.
PASSING = ("Busy", "Draining", "NotReady", "Canceled")
# A call to a sidecar that dies or goes: nothing is wrong.
GONE = (OSError, AssertionError)


def point_at(link, directory):
    """Replace the symbolic link, atomically."""
    temporary = link.with_name(link.name + ".new")
    temporary.symlink_to(directory)
    os.replace(temporary, link)


class Replacing(threading.Thread):
    """Reloads one table, again and again."""

    def __init__(self, soak, table):
        super().__init__(daemon=True)
        self.soak, self.table = soak, table
        self.random = random.Random(f"{soak.options.seed} {table}")
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
                self.count("interrupted")
            time.sleep(0.01)

    def count(self, what):
        self.done[f"{self.table}: {what}"] += 1

    def refused(self, error, *expected):
        if error.name not in (*PASSING, *expected):
            self.faults.append(f"{self.table}: {error}")

    def once(self, client):
        self.soak.point_at(self.table, self.random.choice(SEEDS))
        if self.table != BESIDE:
            self.reload(client)
            return
        name, = self.random.choices(("reload", "again", "hold", "rollback"),
                                    (8, 1, 2, 2))
        getattr(self, name)(client)

    def reload(self, client, **how):
        """Its final state."""
        job = client.call("reload", table=self.table, **how)["job"]
        job = client.finish(job)
        what = " ".join(["reload", *how])
        if job["state"] != "failed":
            self.count(f"{what} unchanged" if job["unchanged"]
                       else f"{what} {job['state']}")
        elif (self.table != BESIDE and
              job["error"]["data"]["name"] == "TimedOut"):
            self.count("not drained in time")
        else:
            self.faults.append(f"{self.table}: {json.dumps(job['error'])}")
        return job

    def again(self, client):
        """What is there already, in other memory."""
        self.reload(client, force=True)

    def hold(self, client):
        job = self.reload(client, hold=True)
        if job["state"] != "done" or job["unchanged"]:
            return
        time.sleep(self.random.uniform(0, 0.05))
        method = self.random.choice(("publish", "publish", "discard"))
        got = client.call(method, table=self.table)
        if method == "publish":
            assert got["generation"] == job["generation"]
        self.count(method)

    def rollback(self, client):
        try:
            client.call("rollback", table=self.table)
        except engramd.RpcError as error:
            self.refused(error, "GenerationGone")
            return
        self.count("rollback")


class Soak:
    def __init__(self, options, directory):
        self.options = options
        self.random = random.Random(options.seed)
        self.dir = pathlib.Path(directory)
        self.directories = {seed: engramd.synth(
            self.dir / f"seed{seed}", *SHAPE, "--seed", str(seed))
            for seed in SEEDS}
        self.known = self.learn()
        self.links = {table: self.dir / f"model-{table}" for table in RELOAD}
        for table in RELOAD:
            self.point_at(table, 0)
        self.sidecar = engramd.Sidecar(self.dir, self.tables(),
                                       log={"level": "info"})
        self.done = collections.Counter()
        self.totals = collections.Counter()
        self.binaries = itertools.cycle(
            engramd.BUILD / "tests" / name for name in options.readers)
        self.seeds = 0  # whose rows were read, a bit for each
        self.readers, self.replacing = [], []

    def tables(self, **more):
        return [{"name": table, "checkpoint": str(self.links[table]),
                 "reload": reload, **more} for table, reload in RELOAD.items()]

    def point_at(self, table, seed):
        point_at(self.links[table], self.directories[seed])

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

    # ---- what happens ----

    def start_reader(self):
        """Of the table that fewer read, or the one beside."""
        read = collections.Counter(reader.table for reader in self.readers)
        table = min(RELOAD, key=lambda table: read[table])
        binary = next(self.binaries)
        withdrawn = {"READER_WITHDRAWN_MS": "500"} if table == PLACED else {}
        reader = row_reader.RowReader(self.sidecar, table, self.known, binary,
                                      **withdrawn)
        reader.table, reader.binary = table, binary
        self.readers.append(reader)

    def drop(self, reader):
        """Add up what it has read, and forget it."""
        self.totals.update({name: count for name, count
                            in reader.counts().items()
                            if name not in ("generation", "seeds")})
        self.seeds |= reader.seeds
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
                    client.request("attach", table=BESIDE)
        except GONE:
            pass

    def watch(self):
        """Nothing but reloads, until some more have ended, each in time."""
        for _ in range(self.random.randrange(8)):
            before = self.reloads()
            engramd.until(lambda was=before: self.reloads() > was,
                          "a table is reloaded")

    def reloads(self):
        return sum(count for thread in self.replacing
                   for what, count in thread.done.copy().items()
                   if ": reload" in what)

    ACTIONS = {"kill_sidecar": 3, "kill_at_start": 1, "stop_sidecar": 3,
               "restart_sidecar": 2, "kill_reader": 3, "stop_reader": 3,
               "leave_half_way": 2, "watch": 8}

    def check(self):
        for reader in self.readers:
            reader.check()
        code = self.sidecar.process.poll()
        assert code is None, f"engramd ended with {code}"

    def run(self):
        for _ in range(self.options.clients):
            self.start_reader()
        self.replacing = [Replacing(self, table) for table in RELOAD]
        for thread in self.replacing:
            thread.start()
        end = time.monotonic() + self.options.seconds
        while time.monotonic() < end:
            name, = self.random.choices(list(self.ACTIONS),
                                        self.ACTIONS.values())
            getattr(self, name)()
            self.done[name] += 1
            time.sleep(self.random.uniform(0, 0.2))
            self.check()
        for thread in self.replacing:
            thread.end = True
        for thread in self.replacing:
            thread.join(engramd.DEADLINE)
            assert not thread.is_alive(), "a replacement never ended"
        self.settle()
        faults = [fault for thread in self.replacing
                  for fault in thread.faults]
        assert not faults, faults[:10]
        for thread in self.replacing:
            self.done.update(thread.done)
        return self.done

    # ---- what is left ----

    def settle(self):
        """Everybody reads what is current, and holds that alone, also after
        reloads that nothing disturbs; then all goes."""
        engramd.until(self.sidecar.answers, "the sidecar answers")
        with self.sidecar.connection() as client:
            client.greet()
            for table in RELOAD:
                self.idle(client, table)
            for seed in (1, 2, 1):
                for table in RELOAD:
                    self.reload(client, table, seed)
            engramd.until(lambda: len(self.sidecar.segments()) ==
                          2 * len(RELOAD),
                          "one generation of each table is left")
            for reader in self.readers:
                assert reader.seeds & 0b110 == 0b110, reader.counts()
                if reader.table == BESIDE:
                    assert reader.refreshes >= 2, reader.counts()
                if reader.table == PLACED:
                    assert reader.parks >= 2, reader.counts()
            for reader in list(self.readers):
                reader.end()
                self.drop(reader)
            for table in RELOAD:
                engramd.until(lambda: client.table(table)["leases"] == 0,
                              "leases end")
                client.finish(client.call("unload", table=table)["job"])
            self.check_sidecar(client)
        self.sidecar.stop()

    def idle(self, client, table):
        """Nothing is under way."""
        client.have(table)
        engramd.until(lambda: client.table(table)["job"] is None,
                      "jobs have ended")

    def reload(self, client, table, seed):
        """Everybody comes to have it."""
        readers = [r for r in self.readers if r.table == table]
        self.point_at(table, seed)
        job = client.finish(client.call("reload", table=table)["job"])
        assert job["state"] == "done", job
        now = client.table(table)
        assert self.known[seed] == now["content_id"]
        for reader in readers:
            self.check_reader(reader, now)
        engramd.until(lambda: client.table(table)["leases"] == len(readers),
                      "every reader has one lease")

    def check_reader(self, reader, table):
        engramd.until(lambda: reader.generation == table["generation"],
                      "it has what is current")
        reader.goes_on()
        pid = reader.process.pid
        engramd.until(lambda: len(self.mapped(pid)) ==
                      len(table["layers"]) + 1,
                      f"old mappings are gone: {self.mapped(pid)}")
        # three of its own, a socket and an eventfd; CUDA has many
        if reader.binary.name != "row_reader_cuda":
            engramd.until(lambda: len(os.listdir(f"/proc/{pid}/fd")) == 5,
                          os.listdir(f"/proc/{pid}/fd"))
        assert engramd.proc_status(pid, "VmLck") == 0

    def mapped(self, pid):
        """Mappings of this instance, among them what has no name now."""
        return [line for line in
                pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines()
                if f"engramd.{self.sidecar.instance}." in line]

    def check_sidecar(self, client):
        fresh = engramd.Sidecar(self.dir, self.tables(load="on_demand"))
        with fresh.connection() as other:
            other.greet()
            for table in RELOAD:
                other.load(table)
            for table in RELOAD:
                other.finish(other.call("unload", table=table)["job"])
            usual = fresh.fd_count()
        fresh.stop()
        for table in RELOAD:
            assert client.table(table)["state"] == "absent"
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
                **done, **it.totals,
                "seeds": [seed for seed in SEEDS if it.seeds >> seed & 1]}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--readers", nargs="+", default=["row_reader"],
                        help="programs of the build's tests/ that clients are, "
                             "in turn (%(default)s)")
    options = parser.parse_args()
    if options.seed is None:
        options.seed = int.from_bytes(os.urandom(4), "little")
    print(f"soak: --seed {options.seed}", flush=True)
    print(json.dumps(soak(options)))


if __name__ == "__main__":
    main()
