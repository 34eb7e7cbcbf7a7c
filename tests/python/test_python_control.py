# SPDX-License-Identifier: Apache-2.0
"""Client against a real engramd, and against one that misbehaves."""
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading

import pytest

import engram_client
import engramd
import sparse_checkpoint
from python_setting import LAYERS, ROOT, start
from engram_client import Client, errors, progress, types

HELLO = {"jsonrpc": "2.0", "method": "hello", "params": {
    "product": "engramd", "version": "0.1.0", "boot_epoch": "00000000000000ff",
    "instance": "x", "protocol": {"major": 1, "minor": 0}}}


def test_who_answers(client, sidecar):
    assert client.server_version == engram_client.__version__
    assert client.instance == sidecar.instance
    assert client.boot_epoch == int(client.status()["boot_epoch"], 16)
    assert "attach" in client.capabilities
    client.ping()
    assert client.call("ping") == {}


def test_tables(client):
    assert {table["name"] for table in client.tables()} == {"demo", "big"}
    demo = client.table("demo")
    assert demo["state"] == "ready"
    assert [layer["layer_id"] for layer in demo["layers"]] == list(LAYERS)


def test_everything_that_is_told(client, sidecar):
    assert client.config() == sidecar.config
    assert client.status()["pid"] == sidecar.process.pid
    names = {method["name"] for method in client.methods()["methods"]}
    assert {"load", "attach", "verify"} <= names
    assert client.name in [who["name"] for who in client.clients()]


def test_load_tells_how_far_it_is(own_sidecar):
    seen = []
    with Client(own_sidecar.socket) as client:
        job = client.load("big", progress=seen.append)
        assert job["state"] == "done" and seen[-1] == job
        assert client.load("big") is None  # it is there
        assert client.verify("big")["state"] == "done"
        assert client.unload("big")["state"] == "done"
        assert client.unload("big") is None


def test_load_without_waiting(own_sidecar):
    with Client(own_sidecar.socket) as client:
        job = client.load("big", wait=False)
        assert job["kind"] == "load"
        assert client.wait(job["job"])["state"] == "done"


def test_cancelled(own_sidecar):
    """Whoever waits for a job that is cancelled is told so."""
    with Client(own_sidecar.socket) as client:
        client.load("demo")
        with client.attach("demo"):
            job = client.unload("demo", wait=False)["job"]
            canceller = threading.Timer(0.1, client.cancel, [job])
            canceller.start()
            with pytest.raises(errors.Canceled):
                client.wait(job)
            canceller.join()


def test_load_follows_one_that_runs(own_sidecar):
    """What engramd loads at its start, or somebody else, is as good."""
    own_sidecar.stop()
    for table in own_sidecar.config["tables"]:
        table["load"] = "start"
    own_sidecar.config["loader"]["bytes_per_second"] = "4MiB"
    own_sidecar.write_config()
    own_sidecar.start()
    seen = []
    with Client(own_sidecar.socket) as client:
        running = client.load("big", wait=False)
        assert running["kind"] == "load" and running["state"] == "running"
        # one on terms of its own may be another
        terms = {"checkpoint": client.table("big")["checkpoint"]}
        own = client.load("own", wait=False, **terms)
        with pytest.raises(errors.Busy) as caught:
            client.load("own", **terms)
        assert caught.value.job == own["job"]
        client.cancel(own["job"])
        for other in (client.verify, client.reload, client.unload):
            with pytest.raises(errors.Busy):
                other("big")
        canceller = threading.Timer(0.3, client.cancel, [running["job"]])
        canceller.start()
        with pytest.raises(errors.Canceled):
            client.load("big", progress=seen.append)
        canceller.join()
        assert {job["job"] for job in seen} == {running["job"]}


def test_types_name_what_there_is(client):
    """types.py has each member that engramd sends, and no other."""
    def check(kind, value):
        assert set(value) == set(kind.__annotations__), kind.__name__

    status = client.status()
    check(types.Status, status)
    table = client.table("demo")
    check(types.TableStatus, table)
    check(types.LayerStatus, table["layers"][0])
    check(types.Generation, table["generations"][0])
    job = client.verify("demo")
    check(types.Job, job)
    check(types.LayerProgress, job["layers"][0])


def test_unload_waits_for_leases_and_busy_names_the_job(own_sidecar):
    with Client(own_sidecar.socket) as client:
        client.load("demo")
        table = client.attach("demo")
        job = client.unload("demo", wait=False)["job"]
        with pytest.raises(errors.Busy) as caught:
            client.verify("demo")
        assert caught.value.job == job
        with pytest.raises(errors.Draining):
            client.attach("demo")
        table.detach()
        assert client.wait(job)["state"] == "done"


def test_errors_have_their_fields(client):
    with pytest.raises(errors.NotFound) as caught:
        client.table("dmo")
    assert caught.value.name == "NotFound"
    assert caught.value.path == "table"
    assert isinstance(caught.value, LookupError)
    with pytest.raises(errors.InvalidArgument) as caught:
        client.call("tables", tabel="demo")
    assert caught.value.path == "tabel"
    with pytest.raises(errors.Unsupported) as caught:
        client.call("pong")
    assert caught.value.fix == 'did you mean "ping"?'
    with pytest.raises(errors.NotReady):
        client.attach("big")
    with pytest.raises(errors.NotFound):
        client.attach("dmo")


def test_no_space_has_both_figures(tmp_path):
    room = os.statvfs("/dev/shm")
    if room.f_bavail * room.f_frsize >= 300 << 30:
        pytest.skip("this machine has room for a table of 300 GiB")
    sparse_checkpoint.make(tmp_path / "huge", 300)
    server = start(tmp_path, {"huge": tmp_path / "huge"})
    try:
        with Client(server.socket) as client:
            with pytest.raises(errors.NoSpace) as caught:
                client.load("huge")
        assert caught.value.needed > caught.value.available > 0
        assert str(caught.value).startswith(caught.value.message)
    finally:
        server.stop()


def test_errors_survive_pickling():
    error = errors.NoSpace("full", fix="free some", needed=7, available=3)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is errors.NoSpace
    assert copy.fields() == error.fields()
    assert str(copy) == "full; fix: free some"
    unknown = errors.from_json({"message": "m", "data": {"name": "New"}})
    assert type(unknown) is errors.EngramError and unknown.name == "New"


def test_events(client, sidecar):
    events = client.events(timeout=60)
    first = next(events)
    assert first["method"] == "event.table"
    with Client(sidecar.socket):
        assert any(event["method"] == "event.client" for event in events)
    events.close()
    assert len(list(client.events(timeout=0.0))) <= 2  # what was there


def test_threads_share_a_client(client):
    wrong = []

    def ask():
        for _ in range(50):
            if client.table("demo")["name"] != "demo":
                wrong.append(1)

    threads = [threading.Thread(target=ask, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_restarted_sidecar_is_met_again(own_sidecar):
    with Client(own_sidecar.socket) as client:
        epoch = client.boot_epoch
        own_sidecar.kill()
        with pytest.raises(errors.Disconnected):
            client.ping()
        with pytest.raises(errors.Disconnected) as caught:
            client.ping()
        assert str(own_sidecar.socket) in str(caught.value)
        own_sidecar.start()
        client.ping()
        assert client.boot_epoch != epoch


def test_a_client_that_came_first_waits(own_sidecar):
    own_sidecar.stop()
    starter = threading.Timer(0.2, own_sidecar.start)
    starter.start()
    with Client(own_sidecar.socket, connect_wait=60) as client:
        client.ping()
    starter.join()


def test_no_sidecar(tmp_path, monkeypatch):
    monkeypatch.setenv("ENGRAMD_SOCKET", str(tmp_path / "none"))
    with pytest.raises(errors.Disconnected, match="start engramd"):
        Client()
    with pytest.raises(ConnectionError):
        Client(connect_wait=0.05)
    with pytest.raises(errors.InvalidArgument, match="107 bytes"):
        Client(tmp_path / ("x" * 120))


def test_closed(sidecar):
    client = Client(sidecar.socket)
    client.close()
    client.close()
    with pytest.raises(errors.InvalidArgument, match="closed"):
        client.ping()


@pytest.fixture
def impostor(tmp_path):
    """impostor(*lines): a socket that sends them to whoever connects."""
    listeners = []

    def make(*lines, wait=True):
        path = tmp_path / "s"
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(path))
        listener.listen()
        listeners.append(listener)

        def serve():
            connection, _ = listener.accept()
            with connection:
                for line in lines:
                    connection.sendall(line)
                while wait and connection.recv(4096):
                    pass

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        return path

    yield make
    for listener in listeners:
        listener.close()


def line(message):
    return json.dumps(message).encode() + b"\n"


@pytest.mark.parametrize("first,error,text", [
    (b"HTTP/1.1 400 Bad Request\r\n", errors.ProtocolError, "not JSON"),
    (line([1]), errors.ProtocolError, "no object"),
    (line({"method": "hello", "params": {"product": "other"}}),
     errors.ProtocolError, "not engramd"),
    (line({"error": {"message": "full", "data": {"name": "Busy"}}}),
     errors.Busy, "full"),
    (line({**HELLO, "params": {**HELLO["params"],
                               "protocol": {"major": 2, "minor": 0}}}),
     errors.VersionMismatch, "install the engram-client that came with"),
    (line({**HELLO, "params": {**HELLO["params"],
                               "protocol": {"major": 0, "minor": 9}}}),
     errors.VersionMismatch, "update engramd"),
    (b"", errors.Disconnected, "closed")])
def test_greetings_that_are_none(impostor, first, error, text):
    with pytest.raises(error, match=text):
        Client(impostor(first, wait=False))


def test_no_answer_in_time(impostor):
    path = impostor(line(HELLO))
    with Client(path, name="", timeout=0.05) as client:
        with pytest.raises(errors.TimedOut):
            client.ping()
        assert isinstance(errors.TimedOut(""), TimeoutError)


def test_answers_in_pieces(impostor):
    """Notifications and unknown members are passed over."""
    answer = line(HELLO) + line({"jsonrpc": "2.0", "method": "event.x"}) + \
        line({"jsonrpc": "2.0", "id": 1, "result": {"more": True}})
    with Client(impostor(*(bytes([b]) for b in answer)), name="") as client:
        assert client.call("ping") == {"more": True}


def test_progress_lines(capsys):
    lines = progress.Lines()
    job = {"kind": "load", "table": "t", "state": "running",
           "phase": "reading", "bytes_total": 2 << 30, "bytes_done": 1 << 30,
           "rate": 1 << 30, "eta_seconds": 1.0}
    lines(job)
    lines(job)  # not due yet
    lines({**job, "state": "done"})
    assert capsys.readouterr().err.splitlines() == [
        "load t: reading 50% of 2.0 GiB, 1.00 GiB/s, 1 s left",
        "load t: done"]


def test_progress_bar():
    shown = []

    class Tqdm:
        def __init__(self, **options):
            shown.append((options["desc"], options["total"]))
            self.n = 0

        def update(self, more):
            self.n += more
            shown.append(self.n)

        def close(self):
            shown.append("closed")

    bar = progress.Bar(Tqdm)
    job = {"kind": "load", "table": "t", "state": "running",
           "phase": "reading", "bytes_total": 10, "bytes_done": 4}
    bar(job)
    bar({**job, "bytes_done": 10})
    bar({**job, "phase": "verifying", "bytes_done": 3})
    bar({**job, "phase": "verifying", "bytes_done": 10, "state": "done"})
    assert shown == [("load t, reading", 10), 4, 10, "closed",
                     ("load t, verifying", 10), 3, 10, "closed"]


def test_interrupted_wait_leaves_the_job(own_sidecar):
    """Ctrl-C ends the waiting, not the load."""
    code = ("import sys, engram_client\n"
            "with engram_client.Client(sys.argv[1]) as c:\n"
            "    c.load('big', progress=lambda j: print(j['job'], flush=True))"
            "\n")
    process = subprocess.Popen(
        [sys.executable, "-c", code, own_sidecar.socket],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "clients/python")})
    job = int(process.stdout.readline())
    process.send_signal(signal.SIGINT)
    process.wait(engramd.DEADLINE)
    process.stdout.close()
    with Client(own_sidecar.socket) as client:
        assert client.wait(job)["state"] == "done"


def test_control_needs_no_arrays():
    """Neither NumPy nor libengram is loaded to operate the sidecar."""
    code = ("import sys, engram_client\n"
            "assert 'numpy' not in sys.modules\n"
            "from engram_client import _library\n"
            "assert not _library._loaded\n")
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, env={
        **os.environ, "PYTHONPATH": str(ROOT / "clients/python")})
