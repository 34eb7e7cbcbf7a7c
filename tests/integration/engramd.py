# SPDX-License-Identifier: Apache-2.0
"""Start an engramd on small synthetic checkpoints and talk to it.

The build under test is $ENGRAM_BUILD (default "build").  Every sidecar has an
instance name, a socket and a directory of its own; Sidecar.stop() asserts
that nothing of it is left behind.
"""
import array
import contextlib
import itertools
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / os.environ.get("ENGRAM_BUILD", "build")
ENGRAMD = BUILD / "bin" / "engramd"
SYNTH = BUILD / "bin" / "engram-synth"
SHM = pathlib.Path("/dev/shm")
DEADLINE = 60.0  # for anything that must happen; never part of an assertion

# Options of engram-synth.
SHAPE = ("--layers", "1,14", "--heads", "8", "--max-ngram", "4", "--dim",
         "64", "--vocab-size", "1024", "--compressed-vocab-size", "700")
SMALL = (*SHAPE, "--shards", "3", "--engram-vocab-size", "1000")
BIG = (*SHAPE, "--shards", "2", "--engram-vocab-size", "100000")

_serial = itertools.count()


def has_gpu():
    return shutil.which("nvidia-smi") is not None and subprocess.run(
        ["nvidia-smi", "-L"], capture_output=True, check=False,
        timeout=DEADLINE).returncode == 0


def until(condition, what):
    """Poll until condition() is true; its value is returned."""
    end = time.monotonic() + DEADLINE
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.005)
    raise AssertionError(f"did not happen: {what}")


def synth(directory, *options):
    subprocess.run([SYNTH, *options, directory], check=True,
                   stdout=subprocess.DEVNULL, timeout=DEADLINE)
    return directory


def replace(model, by):
    """As a download does: each file by a rename, weights first, index last."""
    for file in sorted(by.iterdir(),
                       key=lambda file: (file.suffix == ".json", file.name)):
        shutil.copy2(file, model / ".new")
        (model / ".new").rename(model / file.name)


def proc_status(pid, key):
    """A number of /proc/PID/status; the letter for "State"."""
    text = pathlib.Path(f"/proc/{pid}/status").read_text()
    word = next(line.split()[1] for line in text.splitlines()
                if line.startswith(f"{key}:"))
    return word if key == "State" else int(word)


def stopped(process):
    """Is it stopped, all of its threads?"""
    return process.poll() is None and \
        proc_status(process.pid, "State") == "T"


class RpcError(Exception):
    def __init__(self, error):
        super().__init__(f"{error['code']} {error['message']}")
        self.code = error["code"]
        self.message = error["message"]
        self.data = error["data"]
        self.name = error["data"]["name"]


class Client:
    """One connection; every wait has a deadline."""

    def __init__(self, path):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(DEADLINE)
        self.sock.connect(str(path))
        self.buffer = b""
        self.fds = []
        self.notifications = []
        self.ids = itertools.count(1)
        self.hello = None

    def greet(self):
        line = self.read()
        assert line and line["method"] == "hello", line
        self.hello = line["params"]
        return self

    def send(self, data):
        if not isinstance(data, bytes):
            data = json.dumps(data).encode() + b"\n"
        self.sock.sendall(data)

    def read_line(self):
        """One line without its newline; None at the end."""
        while b"\n" not in self.buffer:
            room = socket.CMSG_SPACE(128 * 4)
            try:
                data, ancillary, flags, _ = self.sock.recvmsg(65536, room)
            except ConnectionResetError:
                return None
            assert not flags & socket.MSG_CTRUNC
            for level, kind, payload in ancillary:
                assert (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS)
                fds = array.array("i")
                fds.frombytes(payload[:len(payload) // 4 * 4])
                self.fds.extend(fds)
            if not data:
                return None
            self.buffer += data
        line, self.buffer = self.buffer.split(b"\n", 1)
        return line

    def read(self):
        line = self.read_line()
        return None if line is None else json.loads(line)

    def request(self, method, **params):
        """Send, without waiting; returns the id."""
        ident = next(self.ids)
        message = {"jsonrpc": "2.0", "id": ident, "method": method}
        if params:
            message["params"] = params
        self.send(message)
        return ident

    def answer(self, ident):
        while True:
            line = self.read()
            assert line is not None, "the sidecar closed the connection"
            if "id" not in line:
                self.notifications.append(line)
                continue
            assert line["id"] == ident, line
            if "error" in line:
                raise RpcError(line["error"])
            return line["result"]

    def call(self, method, **params):
        return self.answer(self.request(method, **params))

    def event(self, method, **match):
        """The next notification of that method with those params."""
        while True:
            if self.notifications:
                line = self.notifications.pop(0)
            else:
                line = self.read()
                assert line is not None, "the sidecar closed the connection"
            params = line.get("params", {})
            if line.get("method") == method and all(
                    params.get(k) == v for k, v in match.items()):
                return params

    def table(self, name):
        return self.call("tables", table=name)["tables"][0]

    def finish(self, job):
        """Wait for a job; its final state."""
        return self.call("job.wait", job=job, timeout_seconds=DEADLINE)

    def load(self, table, **more):
        job = self.finish(self.call("load", table=table, **more)["job"])
        assert job["state"] == "done", job
        return job

    def have(self, table):
        """Load it unless it is adopted, or loaded, already."""
        # an adoption that finds too little ends as if nothing had been tried
        until(lambda: self.table(table)["state"] not in
              ("loading", "verifying"), f"{table} adopted or not")
        if self.table(table)["state"] in ("absent", "failed"):
            self.load(table)
        until(lambda: self.table(table)["state"] == "ready", f"{table} ready")
        return self.table(table)

    def close_fds(self):
        for fd in self.fds:
            os.close(fd)
        self.fds = []

    def close(self):
        self.close_fds()
        self.sock.close()


def connect_as(sidecar, uid, gid, groups):
    """Only the connecting is done as that user: a socket keeps the
    credentials it was connected with."""
    client = Client.__new__(Client)
    before = os.getgroups()
    os.setgroups(groups)
    os.setegid(gid)
    os.seteuid(uid)
    try:
        client.__init__(sidecar.socket)
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(before)
    return client.greet()


class Sidecar:
    def __init__(self, directory, tables=(), start=True, **config):
        self.dir = pathlib.Path(directory)
        self.instance = f"test-{os.getpid()}-{next(_serial)}"
        self.config_file = self.dir / f"{self.instance}.json"
        self.log_file = self.dir / f"{self.instance}.log"
        # Not under the test's directory: sun_path holds 107 bytes.
        self.run = pathlib.Path(f"/tmp/engramd-{self.instance}")
        self.socket = self.run / "s"
        self.config = {"instance": self.instance, "log": {"level": "debug"},
                       "loader": {"threads": 2},
                       "tables": list(tables)}
        self.config.update(config)
        self.config["socket"] = {"path": str(self.socket),
                                 **config.get("socket", {})}
        memory = self.config.get("memory", {})
        self.home = pathlib.Path(memory.get("path", SHM))
        self.nameless = memory.get("backing") == "memfd"
        self.clients = []
        self.process = None
        self.write_config()
        if start:
            self.start()

    def write_config(self):
        self.config_file.write_text(json.dumps(self.config, indent=2))

    def command(self, binary):
        """The words, and what else Popen needs."""
        return [str(binary), "-c", str(self.config_file)], {}

    def start(self, wait=True, binary=ENGRAMD, **environment):
        command, more = self.command(binary)
        with open(self.log_file, "ab") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={**os.environ, **environment}, **more)
        if wait:
            self.wait_answer()
        return self

    def wait_answer(self):
        until(self.answers, "the sidecar answers")
        if self.nameless:
            return
        # so that descriptors can be counted from here on
        until(lambda: self.connections() == 0, "the first connection is gone")

    def answers(self):
        assert self.process.poll() is None, self.log()
        try:
            client = Client(self.socket)
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        client.greet()
        client.close()
        return True

    def log(self):
        return self.log_file.read_text(errors="replace")

    def client(self):
        client = Client(self.socket).greet()
        self.clients.append(client)
        return client

    @contextlib.contextmanager
    def connection(self):
        client = Client(self.socket)
        try:
            yield client
        finally:
            client.close()

    def ping(self):
        with self.connection() as client:
            client.greet()
            assert client.call("ping") == {}

    def fd_count(self):
        """Once it stays: a connection is counted as gone just before its
        descriptor is closed."""
        directory = f"/proc/{self.process.pid}/fd"
        count, before = len(os.listdir(directory)), None
        while count != before:
            time.sleep(0.01)
            count, before = len(os.listdir(directory)), count
        return count

    def locked_bytes(self):
        """As the kernel counts."""
        return proc_status(self.process.pid, "VmLck") << 10

    def threads(self):
        return os.listdir(f"/proc/{self.process.pid}/task")

    def connections(self):
        """As the control page has it (shm/engram_control.h)."""
        page = (self.home / f"engramd.{self.instance}.ctl").read_bytes()
        return int.from_bytes(page[112:120], "little")

    def names(self):
        """What the backing holds of this instance."""
        return sorted(p.name for p in self.home.iterdir()
                      if p.name.lstrip(".").startswith(
                          f"engramd.{self.instance}."))

    def segments(self):
        return [n for n in self.names() if not n.endswith(".ctl")]

    def hang_up(self):
        for client in self.clients:
            client.close()
        self.clients = []

    def signal(self, number):
        self.process.send_signal(number)

    def pause(self):
        """Stop all of its threads, and see that they have."""
        self.signal(signal.SIGSTOP)

        def stopped(thread):
            stat = pathlib.Path(f"/proc/{self.process.pid}/task/{thread}/stat")
            return stat.read_text().rpartition(")")[2].split()[0] == "T"

        until(lambda: all(map(stopped, self.threads())), "it has stopped")

    def resume(self):
        self.signal(signal.SIGCONT)

    def kill(self):
        """As a crash would: nothing is cleaned."""
        self.hang_up()
        self.process.kill()
        self.process.wait(DEADLINE)

    def wait(self):
        return self.process.wait(DEADLINE)

    def stop(self, code=0):
        """Stop, and check that nothing is left."""
        try:
            if self.process.poll() is None:
                self.signal(signal.SIGTERM)
            got = self.wait()
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError("no end after SIGTERM\n" + self.log())
        finally:
            self.hang_up()
        log = self.log()
        assert got == code, f"exit code {got}\n{log}"
        for word in ("AddressSanitizer", "LeakSanitizer", "ThreadSanitizer",
                     "runtime error"):
            assert word not in log, log
        assert self.names() == []
        assert not self.socket.exists()
        assert not self.socket.with_name("s.lock").exists()
        self.run.rmdir()


def stop_all(sidecars):
    """Each as its test expects; none outlives a test that failed."""
    try:
        for sidecar in sidecars:
            if sidecar.process:
                sidecar.stop(getattr(sidecar, "expect", 0))
    finally:
        for sidecar in sidecars:
            if sidecar.process and sidecar.process.poll() is None:
                sidecar.process.kill()
                sidecar.process.wait()
