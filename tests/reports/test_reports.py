# SPDX-License-Identifier: Apache-2.0
"""Reports from the field, one test each, by number.

Some are with what they test, in other folders and in C: `grep -r report_NN
tests` finds each, and test_every_report_has_a_test that none is missing.

20, a clock that is stepped: every duration and deadline is taken from
CLOCK_MONOTONIC (sidecar/clock.h, the event loop's timers, poll's timeouts);
the wall clock is read for the log's time stamps, for start_ns of the control
page and created_ns of a segment, which nothing compares.  test_report_20 keeps it so.
"""
import contextlib
import ctypes
import hashlib
import os
import re
import shutil
import signal
import struct
import subprocess
import sys

import pytest

import engramd

def table_config(checkpoint, name="demo", **more):
    return {"name": name, "checkpoint": str(checkpoint), "load": "on_demand",
            **more}


def start(sidecar, *prefix, wait=True, **popen):
    """As Sidecar.start, behind another command."""
    with open(sidecar.log_file, "ab") as log:
        sidecar.process = subprocess.Popen(
            [*prefix, engramd.ENGRAMD, "-c", sidecar.config_file],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, **popen)
    if wait:
        engramd.until(sidecar.answers, "the sidecar answers")


class Mounts:
    """A mount namespace with some mounts of its own, kept by a process that
    does nothing."""

    def __init__(self, *commands):
        if os.geteuid() != 0:
            pytest.skip("needs root to mount a file system")
        script = " && ".join([*commands, "echo ready", "exec cat"])
        self.keeper = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", script],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL)
        if self.keeper.stdout.readline() != b"ready\n":
            self.close()
            pytest.skip("mounting a file system is not allowed here")
        self.enter = ["nsenter", f"--target={self.keeper.pid}", "--mount"]
        self.shm = f"/proc/{self.keeper.pid}/root/dev/shm"

    def close(self):
        self.keeper.stdin.close()
        self.keeper.stdout.close()
        self.keeper.wait(engramd.DEADLINE)


@pytest.fixture
def mounts(make):  # pylint: disable=unused-argument
    """Mount namespaces; they go before the sidecars in them are stopped."""
    made = []

    def factory(*commands):
        made.append(Mounts(*commands))
        return made[-1]

    yield factory
    for m in made:
        m.close()


def segment_bytes(make, checkpoint):
    """What the table takes in a backing."""
    sidecar = make([table_config(checkpoint)])
    client = sidecar.client()
    client.load("demo")
    return client.table("demo")["bytes"]


def contents(fds):
    """A hash of all that the lent descriptors hold."""
    digest = hashlib.sha256()
    for fd in fds:
        size = os.fstat(fd).st_size
        digest.update(os.pread(fd, size, 2 << 20))
    return digest.hexdigest()


@pytest.mark.parametrize("adopt", ["off", "verify"])
def test_report_01_killed_on_a_tight_tmpfs(make, mounts, big_checkpoint,
                                           adopt):
    """Five times, on 1.2 times the table: what the dead one left behind has
    to go before there is room, or is the table."""
    size = segment_bytes(make, big_checkpoint) * 6 // 5
    ns = mounts(f"mount -t tmpfs -o size={size} tmpfs /dev/shm")
    sidecar = make([table_config(big_checkpoint)], start=False,
                   memory={"lock": "off", "adopt": adopt})
    for turn in range(5):
        start(sidecar, *ns.enter)
        table = sidecar.client().have("demo")
        assert table["adopted"] == (adopt != "off" and turn > 0)
        sidecar.kill()
        assert len(os.listdir(ns.shm)) == 3
    start(sidecar, *ns.enter)
    sidecar.client().have("demo")
    sidecar.stop()
    sidecar.process = None
    assert os.listdir(ns.shm) == []


@contextlib.contextmanager
def stopped_load(sidecar, client):
    """Within it the sidecar stands still in the middle of a load; the
    job."""
    number = client.call("load", table="demo")["job"]
    engramd.until(
        lambda: client.call("job.get", job=number)["bytes_done"] > 0,
        "bytes are read")
    sidecar.signal(signal.SIGSTOP)
    try:
        yield number
    finally:
        sidecar.signal(signal.SIGCONT)


def test_report_07_descriptor_numbers_are_reused(make, checkpoint, tmp_path):
    """Two tables that differ, attached and detached, unloaded and loaded in
    turn: each time the contents are that table's."""
    other = engramd.synth(tmp_path / "other", "--layers", "3,9", "--heads",
                          "8", "--dim", "64", "--engram-vocab-size", "1000")
    sidecar = make([table_config(checkpoint, "a"), table_config(other, "b")])
    client = sidecar.client()
    known = {}
    for turn in range(40):
        name = "ab"[turn % 2]
        if client.table(name)["state"] == "absent":
            client.load(name)
        lease = client.call("attach", table=name)["lease"]
        got = contents(client.fds[1:])
        client.close_fds()
        assert known.setdefault(name, got) == got, f"turn {turn}"
        client.call("detach", lease=lease)
        if turn % 3 == 0:
            client.finish(client.call("unload", table=name)["job"])
    assert known["a"] != known["b"]


CHILD = """
import mmap, os, sys
sys.path.insert(0, sys.argv[1])
import engramd, hashlib
client = engramd.Client(sys.argv[2]).greet()
client.call("attach", table="demo")
maps = [mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ)
        for fd in client.fds[1:]]
client.close_fds()
print("attached", flush=True)
for line in sys.stdin:
    print(hashlib.sha256(b"".join(m[2 << 20:] for m in maps)).hexdigest(),
          flush=True)
"""


class Reader:
    """A process that has attached, and hashes what it sees when asked."""

    def __init__(self, sidecar):
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD, engramd.__file__.rpartition("/")[0],
             sidecar.socket], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdout.readline() == b"attached\n"

    def read(self):
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()
        return self.process.stdout.readline()

    def end(self, kill=False):
        if kill:
            self.process.kill()
        self.process.stdin.close()
        self.process.wait(engramd.DEADLINE)
        self.process.stdout.close()


def test_report_08_restart_is_noticed(make, checkpoint):
    """The page stays where a client has it mapped, and the same table is
    generation 1 again: the epoch tells the two apart."""
    sidecar = make([table_config(checkpoint)])
    client = sidecar.client()
    client.load("demo")
    client.call("attach", table="demo")
    page = client.fds.pop(0)

    def epoch_and_generation():
        data = os.pread(page, 4096, 0)
        at = data.index(b"demo\0", 80)
        return data[80:88], int.from_bytes(data[at + 64:at + 72], "little")

    before = epoch_and_generation()
    sidecar.kill()
    sidecar.start()
    sidecar.client().have("demo")
    after = epoch_and_generation()
    assert before[0] != after[0] and before[1] == after[1] == 1
    # a clean stop withdraws all
    sidecar.signal(signal.SIGTERM)
    assert sidecar.wait() == 0
    assert os.pread(page, 8, 80) == bytes(8)
    os.close(page)


def test_report_09_and_10_one_of_four_is_killed(make, checkpoint):
    """The others' contents are intact, their leases too; so they are after
    the sidecar itself was killed, however long they were idle."""
    sidecar = make([table_config(checkpoint)])
    client = sidecar.client()
    client.load("demo")
    readers = [Reader(sidecar) for _ in range(4)]
    first = readers[0].read()
    readers.pop().end(kill=True)
    engramd.until(lambda: client.table("demo")["leases"] == 3,
                  "the lease of the killed one ends")
    assert [r.read() for r in readers] == [first] * 3
    sidecar.kill()
    sidecar.start()
    assert [r.read() for r in readers] == [first] * 3
    for reader in readers:
        reader.end()


LIBRARY = """
import ctypes, sys
lib = ctypes.CDLL(sys.argv[1])
class Open(ctypes.Structure):
    _fields_ = [("socket", ctypes.c_char_p), ("name", ctypes.c_char_p),
                ("connect_wait_ms", ctypes.c_int),
                ("call_timeout_ms", ctypes.c_int)]
class Attach(ctypes.Structure):
    _fields_ = [("table", ctypes.c_char_p), ("layers", ctypes.c_void_p),
                ("num_layers", ctypes.c_uint32), ("tp_rank", ctypes.c_uint32),
                ("tp_size", ctypes.c_uint32), ("writable", ctypes.c_int)]
client, table = ctypes.c_void_p(), ctypes.c_void_p()
# For ever: a call that waits for an answer would never end.
params = Open(sys.argv[2].encode(), None, 0, -1)
assert lib.engram_open(ctypes.byref(params), ctypes.byref(client)) == 0
attach = Attach(b"demo", None, 0, 0, 0)
assert lib.engram_attach(client, ctypes.byref(attach),
                         ctypes.byref(table)) == 0
print("attached", flush=True)
sys.stdin.readline()
assert lib.engram_detach(table) == 0
assert lib.engram_close(client) == 0
"""


def test_report_11_client_leaves_a_stopped_sidecar(make, checkpoint):
    """Detaching and closing wait for nobody."""
    if "asan" in engramd.BUILD.name or "tsan" in engramd.BUILD.name:
        pytest.skip("the library needs its sanitizer loaded first")
    sidecar = make([table_config(checkpoint)])
    client = sidecar.client()
    client.load("demo")
    process = subprocess.Popen(
        [sys.executable, "-c", LIBRARY,
         engramd.BUILD / "lib" / "libengram.so", sidecar.socket],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"attached\n"
    assert client.table("demo")["leases"] == 1
    sidecar.signal(signal.SIGSTOP)
    try:
        process.communicate(b"\n", timeout=engramd.DEADLINE)
    finally:
        sidecar.signal(signal.SIGCONT)
    assert process.returncode == 0
    engramd.until(lambda: client.table("demo")["leases"] == 0,
                  "the lease ends")


def test_report_12_started_while_the_killed_one_dies(make, big_checkpoint):
    """The kernel unmaps the table before it lets go of locks and socket:
    the new one waits for that, and does not call the name taken."""
    sidecar = make([table_config(big_checkpoint)])
    for _ in range(3):
        sidecar.client().have("demo")
        dying = sidecar.process
        sidecar.hang_up()
        dying.kill()
        sidecar.start(wait=False)
        dying.wait(engramd.DEADLINE)
        sidecar.wait_answer()
        assert len(sidecar.segments()) == 2
        assert sidecar.client().have("demo")["adopted"]


def deny(number, error, third=None):
    """For preexec_fn: a system call fails, if its third argument is that
    one."""
    libc = ctypes.CDLL(None, use_errno=True)
    insns = [(0x20, 0, 0, 0),             # load the system call's number
             (0x15, 0, 1, number)]        # is it that one?
    if third is not None:
        insns = [(0x20, 0, 0, 0), (0x15, 0, 3, number),
                 (0x20, 0, 0, 32),        # load the argument's low half
                 (0x15, 0, 1, third)]
    insns += [(0x06, 0, 0, 0x00050000 | error),  # SECCOMP_RET_ERRNO
              (0x06, 0, 0, 0x7fff0000)]          # SECCOMP_RET_ALLOW
    program = b"".join(struct.pack("HBBI", *insn) for insn in insns)
    buffer = ctypes.create_string_buffer(program, len(program))
    prog = struct.pack("HxxxxxxP", len(insns), ctypes.addressof(buffer))

    def enter():
        # PR_SET_NO_NEW_PRIVS, then PR_SET_SECCOMP with a filter
        if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, prog, 0, 0):
            raise OSError(ctypes.get_errno(), "seccomp")
    enter.keep = buffer
    return enter


def deny_io_uring(error):
    """io_uring_setup (425 everywhere) fails, as under a container's seccomp
    profile or kernel.io_uring_disabled."""
    return deny(425, error)


@pytest.mark.parametrize("name, error", [("EPERM", 1), ("ENOSYS", 38)])
def test_report_15_io_uring_denied(make, checkpoint, name, error):
    """Read by threads instead, said with the reason, and the same bytes."""
    sidecar = make([table_config(checkpoint)])
    client = sidecar.client()
    client.load("demo")
    expected = client.table("demo")["content_id"]
    denied = make([table_config(checkpoint)], start=False)
    start(denied, preexec_fn=deny_io_uring(error))
    client = denied.client()
    client.load("demo")
    table = client.table("demo")
    assert table["loader"]["engine"] == "preadv", name
    assert "io_uring" in table["loader"]["reason"]
    assert os.strerror(error) in table["loader"]["reason"]
    assert table["content_id"] == expected


@pytest.mark.parametrize("lock", ["try", "require"])
def test_report_16_memlock_tiny(make, checkpoint, lock):
    """With "try" it serves unlocked memory and says so; "require" refuses
    before a byte is read."""
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("needs root and setpriv to drop CAP_IPC_LOCK")
    sidecar = make([table_config(checkpoint)], start=False,
                   memory={"lock": lock})
    start(sidecar, "setpriv", "--bounding-set=-ipc_lock",
          "--inh-caps=-ipc_lock", "prlimit", "--memlock=65536:65536")
    client = sidecar.client()
    job = client.finish(client.call("load", table="demo")["job"])
    if lock == "require":
        assert job["error"]["data"]["name"] == "MemlockTooLow"
        assert job["bytes_done"] == 0
        return
    assert job["state"] == "done", job
    assert client.table("demo")["locked"] is False
    assert client.call("status")["memory"]["locked"] == 0
    assert 'msg="memory is not locked"' in sidecar.log()
    assert "LimitMEMLOCK=infinity" in sidecar.log()


def copy_checkpoint(source, to):
    shutil.copytree(source, to)
    return to, sorted(to.glob("*.safetensors"))


@pytest.mark.parametrize("how", ["truncated", "overwritten"])
def test_report_17_source_changes_during_the_load(make, big_checkpoint,
                                                  tmp_path, how):
    """Never half a table: the load fails and names the file."""
    directory, shards = copy_checkpoint(big_checkpoint, tmp_path / "model")
    sidecar = make([table_config(directory)])
    client = sidecar.client()
    with stopped_load(sidecar, client) as number:
        for shard in shards:
            size = shard.stat().st_size
            with open(shard, "r+b") as f:
                if how == "truncated":
                    f.truncate(size * 3 // 4)
                else:
                    f.seek(size - 8)
                    f.write(b"changed!")
    job = client.finish(number)
    assert job["state"] == "failed", job
    assert ".safetensors" in job["error"]["message"]
    assert sidecar.segments() == []
    assert client.table("demo")["state"] == "failed"


def test_report_20_no_deadline_by_the_wall_clock():
    """CLOCK_REALTIME, time() and their like stand where they are shown to
    people and nowhere else."""
    allowed = {"sidecar/log.c", "shm/control.c", "shm/segment_write.c"}
    wall = re.compile(r"CLOCK_REALTIME\b|\btime\(|\bgettimeofday\(|"
                      r"\bpthread_cond_timedwait\(|\bsem_timedwait\(")
    found = set()
    for folder in "sidecar", "shm", "clients/c", "kernels":
        for path in (engramd.ROOT / folder).rglob("*.c"):
            code = re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.S)
            if wall.search(code):
                found.add(str(path.relative_to(engramd.ROOT)))
    assert found == allowed


def test_report_22_checkpoint_replaced_in_place(make, checkpoint, tmp_path):
    """The same size, other bytes: loaded again, it is another table, and
    the new rows are served."""
    directory, shards = copy_checkpoint(checkpoint, tmp_path / "model")
    sidecar = make([table_config(directory)])
    client = sidecar.client()

    def load_and_read():
        client.load("demo")
        client.call("attach", table="demo")
        got = contents(client.fds[1:])
        header = [os.pread(fd, 1 << 20, 0) for fd in client.fds[1:]]
        client.close_fds()
        table = client.table("demo")
        for lease in client.call("clients")["clients"][0]["leases"]:
            client.call("detach", lease=lease["lease"])
        client.finish(client.call("unload", table="demo")["job"])
        return table["generation"], table["content_id"], got, header

    first = load_and_read()
    for shard in shards:
        data = bytearray(shard.read_bytes())
        data[-1] ^= 1
        shard.write_bytes(data)
    second = load_and_read()
    assert [a != b for a, b in zip(first, second)] == [True] * 4


def test_report_26_no_dev_shm(make, mounts, checkpoint):
    """Without it "shm" says what to do, and memfd works."""
    ns = mounts("mount -t tmpfs tmpfs /dev")
    shm = make([table_config(checkpoint)], start=False)
    start(shm, *ns.enter, wait=False)
    assert shm.wait() == 1
    log = shm.log()
    shm.process = None
    assert 'error="open /dev/shm: No such file or directory"' in log
    assert "fix=" in log
    memfd = make([table_config(checkpoint)], start=False,
                 memory={"backing": "memfd", "lock": "off"})
    start(memfd, *ns.enter)
    client = memfd.client()
    client.load("demo")
    client.call("attach", table="demo")
    assert os.pread(client.fds[1], 8, 0) == b"EGRMDSG1"


def test_report_30_two_publishers_at_once(make, checkpoint):
    """Started together on one instance and socket: one serves, the other
    says so and leaves the first one's names alone."""
    sidecar = make([table_config(checkpoint, load="start")], start=False)
    for _ in range(5):
        start(sidecar, wait=False)
        first = sidecar.process
        start(sidecar, wait=False)
        second = sidecar.process
        engramd.until(lambda: first.poll() is not None or
                      second.poll() is not None, "one gives up")
        loser = first if first.poll() is not None else second
        sidecar.process = second if loser is first else first
        assert loser.wait() == 1
        assert "name=Busy" in sidecar.log()
        sidecar.wait_answer()
        client = sidecar.client()
        engramd.until(lambda: client.table("demo")["state"] == "ready",
                      "the table loads")
        assert len(sidecar.names()) == 3
        sidecar.signal(signal.SIGTERM)
        assert sidecar.wait() == 0
        assert sidecar.names() == []
