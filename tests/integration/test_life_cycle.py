# SPDX-License-Identifier: Apache-2.0
"""Tables and the daemon itself: from start to stop, with faults between."""
import errno
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess

import pytest

import engramd
from engramd import RpcError


def table_config(checkpoint, name="demo", load="on_demand", **more):
    return {"name": name, "checkpoint": str(checkpoint), "load": load, **more}


def refused(client, method, **params):
    with pytest.raises(RpcError) as caught:
        client.call(method, **params)
    return caught.value


def run_engramd(*args):
    return subprocess.run([engramd.ENGRAMD, *args], capture_output=True,
                          text=True, timeout=engramd.DEADLINE)


# ---- the command ----

def test_command_line(tmp_path):
    assert run_engramd("--help").stdout.startswith("usage: engramd -c FILE")
    assert run_engramd("--version").stdout.startswith("engramd ")
    got = run_engramd()
    assert got.returncode == 2
    assert "no configuration: give -c FILE" in got.stderr
    assert run_engramd("--no-such").returncode == 2
    assert run_engramd("-c", "x", "y").returncode == 2


def test_check(make, checkpoint, tmp_path):
    sidecar = make([table_config(checkpoint)], start=False)
    got = run_engramd("-c", sidecar.config_file, "--check")
    assert (got.returncode, got.stdout) == (0, f"{sidecar.config_file}: ok\n")
    sidecar.config["soket"] = 1
    sidecar.write_config()
    got = run_engramd("-c", sidecar.config_file, "--check")
    assert got.returncode == 1
    assert "soket" in got.stderr
    got = run_engramd("-c", tmp_path / "none.json", "--check")
    assert got.returncode == 1
    assert "none.json" in got.stderr


# ---- loading ----

def test_load_at_start(make, checkpoint):
    sidecar = make([table_config(checkpoint, load="start")])
    client = sidecar.client()
    client.call("events.subscribe")
    client.event("event.table", state="ready")


def test_report_13_busy_with_the_first_load(make, big_checkpoint):
    sidecar = make([table_config(big_checkpoint)])
    client = sidecar.client()
    number = client.call("load", table="demo")["job"]
    for method in ("load", "unload", "verify"):
        error = refused(client, method, table="demo")
        assert error.name == "Busy"
        assert error.data["job"] == number
        assert error.message == \
            f'table "demo": job {number} (load) is running'
    error = refused(client, "attach", table="demo")
    assert error.name == "NotReady"
    assert error.data["job"] == number
    assert client.call("ping") == {}
    assert client.call("job.cancel", job=number)["job"] == number
    assert client.finish(number)["state"] == "canceled"
    assert client.table("demo")["state"] == "absent"
    assert sidecar.segments() == []


def test_two_loads_at_once(make, checkpoint):
    sidecar = make([table_config(checkpoint, "a"),
                    table_config(checkpoint, "b", layout="split")])
    one, two = sidecar.client(), sidecar.client()
    first = one.call("load", table="a")["job"]
    second = two.call("load", table="b")["job"]
    assert one.finish(first)["state"] == "done"
    assert two.finish(second)["state"] == "done"
    # the content id is of the bytes, not of the layout or the name
    assert one.table("a")["content_id"] == one.table("b")["content_id"]


def test_failed_load(make, checkpoint, tmp_path):
    """It leaves nothing, says why, and touches no other table."""
    copy = tmp_path / "copy"
    shutil.copytree(checkpoint, copy)
    sidecar = make([table_config(copy, "broken"), table_config(checkpoint)])
    client = sidecar.client()
    client.load("demo")
    before = sidecar.names()
    fds = sidecar.fd_count()
    (copy / "config.json").rename(copy / "away.json")
    job = client.finish(client.call("load", table="broken")["job"])
    assert job["state"] == "failed"
    assert job["error"]["message"].startswith('table "broken": ')
    assert "config.json" in job["error"]["message"] + \
        job["error"]["data"].get("path", "")
    table = client.table("broken")
    assert table["state"] == "failed"
    assert table["error"] == job["error"]
    assert table["generation"] == 0
    assert refused(client, "attach", table="broken").name == "NotReady"
    assert sidecar.names() == before
    assert sidecar.fd_count() == fds
    assert client.table("demo")["state"] == "ready"
    # mended, it loads
    (copy / "away.json").rename(copy / "config.json")
    client.load("broken")
    table = client.table("broken")
    assert (table["state"], table["generation"]) == ("ready", 1)
    assert table["error"] is None


def test_failure_of_a_table_nobody_configured(make, checkpoint, tmp_path):
    sidecar = make()
    client = sidecar.client()
    number = client.call("load", table="x",
                         checkpoint=str(tmp_path / "nowhere"))["job"]
    assert client.finish(number)["state"] == "failed"
    assert client.table("x")["state"] == "failed"
    # told another place, it is loaded from there
    client.load("x", checkpoint=str(checkpoint))
    client.finish(client.call("unload", table="x")["job"])
    number = client.call("load", table="x",
                         checkpoint=str(tmp_path / "nowhere"))["job"]
    client.finish(number)
    assert client.call("unload", table="x") == {"job": None}
    assert client.call("tables") == {"tables": []}


def test_unload_waits_for_leases(make, checkpoint):
    sidecar = make([table_config(checkpoint)])
    client, holder = sidecar.client(), sidecar.client()
    client.load("demo")
    lease = holder.call("attach", table="demo")["lease"]
    number = client.call("unload", table="demo")["job"]
    assert client.table("demo")["state"] == "draining"
    error = refused(holder, "attach", table="demo")
    assert (error.name, error.data["job"]) == ("Draining", number)
    job = client.call("job.get", job=number)
    assert (job["state"], job["phase"]) == ("running", "waiting")
    holder.call("detach", lease=lease)
    job = client.finish(number)
    assert (job["state"], job["phase"]) == ("done", "freeing")
    assert client.table("demo")["state"] == "absent"
    assert sidecar.segments() == []
    # the holder's memory is its own matter
    assert os.pread(holder.fds[1], 8, 0) == b"EGRMDSG1"


def test_unload_canceled(make, checkpoint):
    sidecar = make([table_config(checkpoint)])
    client, holder = sidecar.client(), sidecar.client()
    client.load("demo")
    lease = holder.call("attach", table="demo")["lease"]
    number = client.call("unload", table="demo")["job"]
    assert client.call("job.cancel", job=number)["state"] == "canceled"
    table = client.table("demo")
    assert (table["state"], table["generation"]) == ("ready", 1)
    again = holder.call("attach", table="demo")["lease"]
    holder.call("detach", lease=lease)
    holder.call("detach", lease=again)
    assert client.table("demo")["state"] == "ready"


def test_verify_finds_a_flipped_bit(make, checkpoint):
    """Said by the job and kept in the table, which stays: who reads it must
    decide."""
    sidecar = make([table_config(checkpoint)])
    client = sidecar.client()
    client.load("demo")
    layer = client.table("demo")["layers"][1]
    with open(engramd.SHM / layer["segment"], "r+b") as f:
        f.seek(2 << 20)  # the records, behind the header region
        byte = f.read(1)[0]
        f.seek(2 << 20)
        f.write(bytes([byte ^ 1]))
    job = client.finish(client.call("verify", table="demo")["job"])
    assert job["state"] == "failed"
    assert job["error"]["data"]["name"] == "ChecksumMismatch"
    assert job["error"]["message"].startswith(
        f'table "demo": layer {layer["layer_id"]}: ')
    table = client.table("demo")
    assert (table["state"], table["error"]) == ("ready", job["error"])


def test_control_page_follows(make, checkpoint):
    """Offsets as in shm/engram_control.h: a table's slot is 256 bytes, the
    name first, then generation, state, leases."""
    sidecar = make([table_config(checkpoint)])
    client = sidecar.client()

    def slot():
        page = (engramd.SHM / f"engramd.{sidecar.instance}.ctl").read_bytes()
        at = page.index(b"demo\0")
        return (int.from_bytes(page[at + 64:at + 72], "little"),
                int.from_bytes(page[at + 72:at + 76], "little"),
                int.from_bytes(page[at + 76:at + 80], "little"))

    assert slot() == (0, 0, 0)
    client.load("demo")
    assert slot() == (1, 3, 0)
    client.call("attach", table="demo")
    assert slot() == (1, 3, 1)
    number = client.call("unload", table="demo")["job"]
    assert slot() == (0, 4, 1)
    client.call("job.cancel", job=number)
    assert slot() == (1, 3, 1)


def test_memfd(make, checkpoint):
    """No name anywhere, and clients get the same descriptors; so a container
    needs no /dev/shm."""
    sidecar = make([table_config(checkpoint)], start=False,
                   memory={"backing": "memfd", "lock": "off"})
    sidecar.start(wait=False)
    engramd.until(sidecar.answers, "the sidecar answers")
    client = sidecar.client()
    client.load("demo")
    assert sidecar.names() == []
    assert client.call("status")["memory"]["backing"] == "memfd"
    client.call("attach", table="demo")
    assert os.pread(client.fds[0], 8, 0) == b"ENRGMCT1"
    assert os.pread(client.fds[1], 8, 0) == b"EGRMDSG1"
    for fd in client.fds:
        with pytest.raises(OSError):
            os.ftruncate(fd, 0)
    client.finish(client.call("verify", table="demo")["job"])
    assert client.table("demo")["error"] is None


def start_on_small_shm(sidecar, size):
    """With a /dev/shm of its own, as a container has."""
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a file system")
    mount = f"mount -t tmpfs -o size={size} tmpfs /dev/shm"
    if subprocess.run(["unshare", "--mount", "sh", "-c", mount],
                      stderr=subprocess.DEVNULL).returncode:
        pytest.skip("mounting a file system is not allowed here")
    with open(sidecar.log_file, "ab") as log:
        sidecar.process = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c",
             f"{mount} && exec {engramd.ENGRAMD} -c {sidecar.config_file}"],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    engramd.until(sidecar.answers, "the sidecar answers")


def test_report_04_larger_than_the_tmpfs(make, checkpoint):
    """Refused with both numbers before a byte is read."""
    sidecar = make([table_config(checkpoint)], start=False,
                   memory={"lock": "off"})
    start_on_small_shm(sidecar, "5m")
    client = sidecar.client()
    room = client.call("status")["memory"]["room"]
    job = client.finish(client.call("load", table="demo")["job"])
    assert job["state"] == "failed"
    assert job["bytes_done"] == 0
    data = job["error"]["data"]
    assert data["name"] == "NoSpace"
    assert data["needed"] == 8 << 20  # two segments of 4 MiB
    assert 0 < data["available"] <= room
    assert job["error"]["message"] == \
        f'table "demo": {data["needed"]} bytes are needed, and /dev/shm ' \
        f'has {data["available"]} available'
    assert "--shm-size" in data["fix"]
    assert client.call("status")["memory"]["room"] == room


def test_no_space_for_a_second_table(make, checkpoint):
    """It would fit but for what the first table holds; unloaded, it does."""
    sidecar = make([table_config(checkpoint, "a"),
                    table_config(checkpoint, "b")], start=False,
                   memory={"lock": "off"})
    start_on_small_shm(sidecar, "11m")
    client = sidecar.client()
    client.load("a")
    job = client.finish(client.call("load", table="b")["job"])
    assert job["error"]["data"]["name"] == "NoSpace"
    assert client.table("a")["state"] == "ready"
    client.finish(client.call("unload", table="a")["job"])
    client.load("b")


def fill(directory):
    """As somebody else would; returns the file that takes all the room."""
    path = directory / "of-somebody-else"
    # Until it is full: a thread that is being stopped may yet take some.
    with open(path, "wb", buffering=0) as f, pytest.raises(OSError) as full:
        while True:
            f.write(bytes(1 << 20))
    assert full.value.errno == errno.ENOSPC
    return path


def test_report_03_filled_up_during_a_load(make, big_checkpoint):
    """Admitted, and then the room is gone: an error and no signal, nothing of
    the load is left, and it succeeds once there is room again."""
    sidecar = make([table_config(big_checkpoint)], start=False,
                   memory={"lock": "off"})
    start_on_small_shm(sidecar, "512m")
    shm = pathlib.Path(f"/proc/{sidecar.process.pid}/root/dev/shm")
    client = sidecar.client()
    before = client.call("status")["memory"]["room"]
    for _ in range(20):  # the load may be through before we are
        number = client.call("load", table="demo")["job"]
        engramd.until(lambda: client.call("job.get", job=number)["bytes_done"],
                      "the load is admitted")
        sidecar.signal(signal.SIGSTOP)
        try:
            taken = fill(shm)
        finally:
            sidecar.signal(signal.SIGCONT)
        job = client.finish(number)
        if job["state"] == "failed":
            break
        taken.unlink()
        client.finish(client.call("unload", table="demo")["job"])
    assert job["state"] == "failed"
    data = job["error"]["data"]
    assert data["name"] == "NoSpace"
    assert 0 <= data["available"] < data["needed"]
    assert "no room for" in job["error"]["message"]
    assert data["fix"]
    assert sorted(p.name for p in shm.iterdir()) == \
        [f"engramd.{sidecar.instance}.ctl", taken.name]
    sidecar.ping()
    taken.unlink()
    assert client.call("status")["memory"]["room"] == before
    client.load("demo")


def test_memlock_required(make, checkpoint):
    if os.geteuid() != 0:
        pytest.skip("needs root to drop CAP_IPC_LOCK")
    if not shutil.which("setpriv"):
        pytest.skip("setpriv is not installed")
    sidecar = make([table_config(checkpoint)], start=False,
                   memory={"lock": "require"})
    with open(sidecar.log_file, "ab") as log:
        sidecar.process = subprocess.Popen(
            ["setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock",
             "prlimit", "--memlock=65536:65536",
             engramd.ENGRAMD, "-c", sidecar.config_file],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    sidecar.wait_answer()
    client = sidecar.client()
    job = client.finish(client.call("load", table="demo")["job"])
    data = job["error"]["data"]
    assert data["name"] == "MemlockTooLow"
    assert data["needed"] > data["available"]
    assert "LimitMEMLOCK=infinity" in data["fix"]
    assert job["bytes_done"] == 0
    assert sidecar.segments() == []


# ---- SIGHUP ----

def reload(sidecar, client):
    """By the signal; returns once its effect is logged."""
    before = sidecar.log().count("configuration ")
    sidecar.write_config()
    sidecar.signal(signal.SIGHUP)
    engramd.until(lambda: sidecar.log().count("configuration ") > before,
                  "the configuration is read again")


def test_reload_tables(make, checkpoint):
    sidecar = make([table_config(checkpoint)])
    client = sidecar.client()
    client.load("demo")
    sidecar.config["tables"] = [
        table_config(checkpoint, "second", load="start"),
        table_config(checkpoint, "third")]
    client.call("events.subscribe")
    reload(sidecar, client)
    client.event("event.table", name="second", state="ready")
    engramd.until(lambda: [t["name"] for t in
                           client.call("tables")["tables"]] ==
                  ["second", "third"], "demo is forgotten")
    assert client.table("third")["state"] == "absent"
    assert len(sidecar.segments()) == 2


def test_reload_removes_a_table_in_use(make, checkpoint):
    """It drains; named again, it stays."""
    sidecar = make([table_config(checkpoint)])
    client, holder = sidecar.client(), sidecar.client()
    client.load("demo")
    lease = holder.call("attach", table="demo")["lease"]
    tables = sidecar.config["tables"]
    sidecar.config["tables"] = []
    reload(sidecar, client)
    assert client.table("demo")["state"] == "draining"
    sidecar.config["tables"] = tables
    reload(sidecar, client)
    assert client.table("demo")["state"] == "ready"
    sidecar.config["tables"] = []
    reload(sidecar, client)
    holder.call("detach", lease=lease)
    engramd.until(lambda: client.call("tables")["tables"] == [],
                  "demo is forgotten")


def test_reload_removes_a_table_that_loads(make, big_checkpoint):
    sidecar = make([table_config(big_checkpoint)])
    client = sidecar.client()
    number = client.call("load", table="demo")["job"]
    sidecar.config["tables"] = []
    reload(sidecar, client)
    assert client.finish(number)["state"] in ("canceled", "done")
    engramd.until(lambda: client.call("tables")["tables"] == [],
                  "demo is forgotten")
    assert sidecar.segments() == []


def test_reload_names_a_table_again(make, checkpoint):
    """What is to be loaded is, also if the removal had gone too far to be
    taken back."""
    sidecar = make([table_config(checkpoint, load="start")])
    client = sidecar.client()
    tables = sidecar.config["tables"]
    for _ in range(20):
        engramd.until(lambda: client.table("demo")["state"] == "ready",
                      "demo is loaded")
        for sidecar.config["tables"] in [], tables:
            sidecar.write_config()
            client.call("config.reload")
    engramd.until(lambda: client.table("demo")["state"] == "ready",
                  "demo is loaded")


def test_reload_of_a_table_that_failed(make, checkpoint, tmp_path):
    """Its configuration put right, it is loaded; so is one that is to be
    loaded now and was not."""
    sidecar = make([table_config(tmp_path / "nowhere", "a", load="start"),
                    table_config(checkpoint, "b")])
    client = sidecar.client()
    engramd.until(lambda: client.table("a")["state"] == "failed", "a fails")
    client.call("config.reload")
    assert client.table("a")["state"] == "failed"
    sidecar.config["tables"][0]["checkpoint"] = str(checkpoint)
    sidecar.config["tables"][1]["load"] = "start"
    sidecar.write_config()
    client.call("config.reload")
    for name in "a", "b":
        engramd.until(lambda: client.table(name)["state"] == "ready",
                      f"{name} is loaded")


def test_reload_by_method(make, checkpoint):
    sidecar = make()
    client = sidecar.client()
    sidecar.config["tables"] = [table_config(checkpoint)]
    sidecar.config["log"] = {"level": "info"}
    sidecar.write_config()
    assert client.call("config.reload") == {}
    assert client.call("config.get")["config"] == sidecar.config
    assert client.call("log.set_level", level="debug")["previous"] == "info"
    assert client.table("demo")["state"] == "absent"


@pytest.mark.parametrize("key, value", [
    ("instance", "other"), ("socket.path", "/tmp/other.sock"),
    ("socket.mode", "0600"), ("memory.backing", "memfd")])
def test_reload_refuses_what_needs_a_restart(make, key, value):
    sidecar = make()
    client = sidecar.client()
    old = json.loads(json.dumps(sidecar.config))
    section, _, member = key.partition(".")
    if member:
        sidecar.config.setdefault(section, {})[member] = value
    else:
        sidecar.config[key] = value
    sidecar.write_config()
    error = refused(client, "config.reload")
    assert error.name == "ConfigInvalid"
    assert error.data["path"] == key
    assert error.message.endswith("differs, and a running sidecar can not "
                                  "change it")
    assert client.call("config.get")["config"] == old


def test_reload_of_a_broken_file(make, checkpoint):
    sidecar = make([table_config(checkpoint)])
    client = sidecar.client()
    client.load("demo")
    sidecar.config_file.write_text('{"instance": ')
    assert refused(client, "config.reload").name == "ConfigInvalid"
    sidecar.config_file.unlink()
    assert refused(client, "config.reload").name in ("NotFound",
                                                     "ConfigInvalid")
    assert client.table("demo")["state"] == "ready"


# ---- stop and start ----

@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_stop(make, checkpoint, number):
    sidecar = make([table_config(checkpoint)])
    client = sidecar.client()
    client.load("demo")
    client.call("attach", table="demo")
    sidecar.signal(number)
    assert sidecar.wait() == 0
    assert client.read_line() is None
    assert os.pread(client.fds[1], 8, 0) == b"EGRMDSG1"


def test_signal_while_starting(make, checkpoint):
    """From the first name on, a signal is a clean stop."""
    sidecar = make([table_config(checkpoint, load="start")], start=False)
    for _ in range(10):
        sidecar.start(wait=False)
        engramd.until(sidecar.names, "there is a name")
        sidecar.signal(signal.SIGTERM)
        assert sidecar.wait() == 0
        assert sidecar.names() == []
        assert not sidecar.socket.exists()


def test_stop_during_a_load(make, big_checkpoint):
    sidecar = make([table_config(big_checkpoint)])
    sidecar.client().call("load", table="demo")
    sidecar.signal(signal.SIGTERM)
    assert sidecar.wait() == 0


def test_second_signal(make, big_checkpoint, monkeypatch):
    """Two at once: the second may come in time or too late, and either way
    no name is left."""
    # leaving at once leaves threads, on purpose
    monkeypatch.setenv("TSAN_OPTIONS", "report_thread_leaks=0")
    sidecar = make([table_config(big_checkpoint)])
    sidecar.client().call("load", table="demo")
    sidecar.signal(signal.SIGTERM)
    sidecar.signal(signal.SIGINT)
    sidecar.expect = sidecar.wait()
    assert sidecar.expect in (0, 1)


def start_refused(sidecar):
    sidecar.start(wait=False)
    assert sidecar.wait() == 1
    return sidecar.log()


def test_two_on_one_instance(make, checkpoint, tmp_path):
    first = make([table_config(checkpoint)])
    client = first.client()
    client.load("demo")
    second = make(start=False)
    second.config["instance"] = first.instance
    second.write_config()
    log = start_refused(second)
    second.process = None
    assert str(first.process.pid) in log
    assert "Busy" in log
    assert client.table("demo")["state"] == "ready"
    assert len(first.segments()) == 2


def test_control_page_of_another_user(make):
    """Whoever made a file of that name first could write it ever after: it
    is replaced."""
    if os.geteuid() != 0:
        pytest.skip("needs root to become another user")
    sidecar = make(start=False)
    page = engramd.SHM / f"engramd.{sidecar.instance}.ctl"
    page.touch()
    os.chown(page, 65534, 65534)
    planted = page.stat().st_ino
    sidecar.start()
    assert page.stat().st_uid == 0
    assert page.stat().st_mode & 0o777 == 0o640
    assert page.stat().st_ino != planted
    sidecar.ping()


def test_two_on_one_socket(make):
    first = make()
    second = make(start=False)
    second.config["socket"]["path"] = str(first.socket)
    second.write_config()
    log = start_refused(second)
    second.process = None
    assert "belongs to another engramd" in log
    assert second.names() == []
    first.ping()


def test_something_else_in_the_sockets_place(make):
    sidecar = make(start=False)
    sidecar.run.mkdir()
    sidecar.socket.write_text("precious")
    log = start_refused(sidecar)
    sidecar.process = None
    assert "is there already and is no socket" in log
    assert sidecar.socket.read_text() == "precious"
    assert sidecar.names() == []
    shutil.rmtree(sidecar.run)


def test_after_a_crash(make, checkpoint):
    """Socket, lock and page of a killed sidecar are stale, and segments that
    are not to be adopted."""
    sidecar = make([table_config(checkpoint)], memory={"adopt": "off"})
    client = sidecar.client()
    client.load("demo")
    epoch = client.hello["boot_epoch"]
    sidecar.kill()
    assert len(sidecar.segments()) == 2
    assert sidecar.socket.exists()
    sidecar.start()
    assert sidecar.segments() == []
    client = sidecar.client()
    assert client.hello["boot_epoch"] != epoch
    client.load("demo")


def test_report_02_killed_while_loading(make, big_checkpoint):
    sidecar = make([table_config(big_checkpoint)])
    for _ in range(3):
        client = sidecar.client()
        client.call("load", table="demo")
        sidecar.kill()
        sidecar.start()
        assert sidecar.segments() == []


def test_start_again_at_once(make, checkpoint):
    sidecar = make([table_config(checkpoint, load="start")])
    for _ in range(3):
        sidecar.signal(signal.SIGTERM)
        assert sidecar.wait() == 0
        sidecar.start()


def test_report_14_two_hundred_idle_connections(make, checkpoint):
    sidecar = make([table_config(checkpoint)])
    client = sidecar.client()
    before = sidecar.fd_count()
    for _ in range(200):
        sidecar.client()
    assert client.call("status")["connections"] == 201
    assert sidecar.fd_count() == before + 200
    for idle in sidecar.clients[1:]:
        idle.close()
    engramd.until(lambda: client.call("status")["connections"] == 1,
                  "all connections are gone")
    assert sidecar.fd_count() == before


def test_out_of_descriptors(make):
    """The backlog waits, and the loop does not spin over it."""
    sidecar = make(start=False)
    with open(sidecar.log_file, "ab") as log:
        sidecar.process = subprocess.Popen(
            ["prlimit", "--nofile=40:40", engramd.ENGRAMD, "-c",
             sidecar.config_file],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    sidecar.wait_answer()
    waiting = []
    for _ in range(60):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.connect(str(sidecar.socket))
        waiting.append(sock)
    engramd.until(lambda: "can not accept connections" in sidecar.log(),
                  "the limit is met")
    for sock in waiting:
        sock.close()
    sidecar.ping()
    lines = sidecar.log().count("can not accept connections")
    assert lines < 60 * 10  # one a tenth of a second, not one a turn


def test_paused_sidecar(make, checkpoint):
    """SIGSTOP it, let a client exit, go on: the lease is gone."""
    sidecar = make([table_config(checkpoint)])
    client, holder = sidecar.client(), sidecar.client()
    client.load("demo")
    holder.call("attach", table="demo")
    sidecar.signal(signal.SIGSTOP)
    holder.close()
    sidecar.signal(signal.SIGCONT)
    engramd.until(lambda: client.table("demo")["leases"] == 0,
                  "the lease ends")


def test_systemd_is_told(make, checkpoint, tmp_path):
    """READY, STATUS and STOPPING arrive at $NOTIFY_SOCKET."""
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.bind(str(path))
        notify.settimeout(engramd.DEADLINE)
        os.environ["NOTIFY_SOCKET"] = str(path)
        try:
            sidecar = make([table_config(checkpoint)])
        finally:
            del os.environ["NOTIFY_SOCKET"]

        def told(what):
            while what not in notify.recv(4096).decode():
                pass

        told("READY=1")
        told("WATCHDOG=1")
        sidecar.signal(signal.SIGTERM)
        told("STOPPING=1")


def test_log_lines_parse(make, checkpoint):
    sidecar = make([table_config(checkpoint)],
                   log={"level": "debug", "format": "json"})
    client = sidecar.client()
    client.call("client.name", name='quo"te\\')
    client.load("demo")
    for line in sidecar.log().splitlines():
        json.loads(line)
