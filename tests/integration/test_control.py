# SPDX-License-Identifier: Apache-2.0
"""The control protocol: every method, and peers that break its rules."""
import grp
import json
import mmap
import os
import pathlib
import re
import select
import signal
import socket
import stat
import subprocess

import pytest

import engramd
from engramd import RpcError, connect_as

BAD = pathlib.Path(__file__).resolve().parents[1] / "bad" / "control"
PROTOCOL = engramd.ROOT / "sidecar" / "PROTOCOL.md"


def refused(client, method, **params):
    with pytest.raises(RpcError) as caught:
        client.call(method, **params)
    return caught.value


# ---- greeting and simple methods ----

def test_greeting(sidecar, client):
    hello = client.hello
    assert hello["product"] == "engramd"
    assert re.fullmatch(r"\d+\.\d+\.\d+", hello["version"])
    assert hello["protocol"] == {"major": 1, "minor": 0}
    assert hello["capabilities"] == ["attach", "events", "jobs", "nodes"]
    assert hello["instance"] == sidecar.instance
    assert re.fullmatch("[0-9a-f]{16}", hello["boot_epoch"])
    assert hello["pid"] == sidecar.process.pid
    assert hello["limits"] == {"line_bytes": 1 << 20, "depth": 32,
                               "fds": 128, "connections": 512}
    assert client.call("version") == hello


def test_socket_mode(make, checkpoint):
    sidecar = make(socket={"mode": "0640"})
    assert stat.S_IMODE(sidecar.socket.stat().st_mode) == 0o640
    assert stat.S_IMODE(sidecar.run.stat().st_mode) == 0o750


def test_status(sidecar, client):
    status = client.call("status")
    assert status["instance"] == sidecar.instance
    assert status["pid"] == sidecar.process.pid
    assert status["boot_epoch"] == client.hello["boot_epoch"]
    assert status["connections"] == 1
    assert status["memory"]["backing"] == "shm"
    assert status["memory"]["room"] > 0
    assert [t["name"] for t in status["tables"]] == ["demo"]
    assert status["jobs"] == []


def test_status_of_a_loaded_table(sidecar, client, checkpoint):
    client.load("demo")
    table = client.call("status")["tables"][0]
    assert table["state"] == "ready"
    assert table["generation"] == 1
    assert table["checkpoint"] == str(checkpoint)
    assert table["layout"] == "packed"
    assert re.fullmatch("[0-9a-f]{32}", table["content_id"])
    assert table["leases"] == 0 and table["job"] is None
    assert table["error"] is None
    assert isinstance(table["locked"], bool)
    loader = table["loader"]
    assert loader["engine"] in ("io_uring", "preadv")
    assert isinstance(loader["direct"], bool)
    assert loader["threads"] >= 1
    assert set(loader) == {"engine", "direct", "registered_buffers",
                           "threads", "queue_depth", "block_bytes",
                           "tuned", "manifest", "seconds_read", "seconds_verify", "reason"}
    assert table["bytes"] == sum(x["bytes"] for x in table["layers"])
    assert [x["segment"] for x in table["layers"]] == sidecar.segments()


def test_discover_is_the_protocol(client):
    found = client.call("rpc.discover")
    documented = re.findall(r"^\| `([a-z._]+)` \| (read|change) \|",
                            PROTOCOL.read_text(), re.MULTILINE)
    assert [(m["name"], m["access"]) for m in found["methods"]] == documented
    for method in found["methods"]:
        assert method["summary"]
        for param in method["params"]:
            assert set(param) == {"name", "type", "required", "summary"}
    codes = {e["name"]: e["code"] for e in found["errors"]}
    assert codes["NoSpace"] == -32004
    assert codes["NotFound"] == -32006
    assert all(e["sentence"] for e in found["errors"])


def test_discover_is_what_is_implemented(sidecar, client):
    """Each parameter is refused when mistyped, each method knows no other,
    and each required one is missed."""
    for method in client.call("rpc.discover")["methods"]:
        error = refused(client, method["name"], no_such_parameter=1)
        assert error.code == -32602 or error.data["path"], method
        for param in method["params"]:
            wrong = 1 if param["type"] != "integer" and \
                param["type"] != "number" else "x"
            error = refused(client, method["name"], **{param["name"]: wrong})
            assert error.code == -32602, (method, error)
        required = [p["name"] for p in method["params"] if p["required"]]
        if required:
            error = refused(client, method["name"])
            assert error.code == -32602
            assert error.data["path"] == required[0]
    # nothing of that had an effect
    assert client.table("demo")["state"] == "absent"
    sidecar.ping()


def test_unknown_method(client):
    error = refused(client, "staus")
    assert error.code == -32601
    assert error.message == 'there is no method "staus"'
    assert error.data["fix"] == 'did you mean "status"?'


def test_unknown_parameter_suggests(client):
    error = refused(client, "attach", table="demo", tp_rnk=1)
    assert error.code == -32602
    assert error.name == "InvalidArgument"
    assert error.data["path"] == "tp_rnk"
    assert "tp_rank" in error.message + error.data["fix"]


def test_notification_has_no_answer(client):
    client.send({"jsonrpc": "2.0", "method": "ping"})
    client.send({"jsonrpc": "2.0", "method": "no.such.method"})
    assert client.call("ping") == {}


def test_ids_come_back(client):
    for ident in (0, -1, 2**53, "text", "", None, 1.5):
        client.send({"jsonrpc": "2.0", "id": ident, "method": "ping"})
        assert client.read() == {"jsonrpc": "2.0", "id": ident, "result": {}}


# ---- tables ----

def test_tables(client):
    assert [t["name"] for t in client.call("tables")["tables"]] == ["demo"]
    error = refused(client, "tables", table="demi")
    assert (error.code, error.name) == (-32006, "NotFound")
    assert error.message == 'there is no table "demi"'
    assert error.data["path"] == "table"


@pytest.mark.parametrize("method", ["load", "unload", "attach", "verify"])
def test_no_such_table(client, method):
    error = refused(client, method, table="nowhere")
    assert (error.name, error.data["path"]) == ("NotFound", "table")


def test_load_unload_repeat(sidecar, client):
    assert client.call("unload", table="demo") == {"job": None}
    client.load("demo")
    assert client.call("load", table="demo") == {"job": None, "generation": 1}
    assert len(sidecar.segments()) == 2
    job = client.finish(client.call("unload", table="demo")["job"])
    assert (job["state"], job["kind"]) == ("done", "unload")
    assert client.table("demo")["state"] == "absent"
    assert sidecar.segments() == []
    client.load("demo")
    assert client.table("demo")["generation"] == 2


def test_load_what_is_not_configured(sidecar, client, checkpoint):
    error = refused(client, "load", table="extra")
    assert error.data["fix"] == \
        'give "checkpoint" to load a table that is not configured'
    client.load("extra", checkpoint=str(checkpoint), layout="split",
                verify=False)
    table = client.table("extra")
    assert (table["layout"], table["configured"]) == ("split", False)
    error = refused(client, "load", table="extra", checkpoint="/elsewhere")
    assert (error.name, error.data["path"]) == ("AlreadyExists", "checkpoint")
    client.finish(client.call("unload", table="extra")["job"])
    # nobody names it any more
    assert [t["name"] for t in client.call("tables")["tables"]] == ["demo"]


def test_load_of_a_configured_table_takes_no_more(client, checkpoint):
    error = refused(client, "load", table="demo", layout="split")
    assert error.message == 'table "demo" is configured: load takes no ' \
        '"layout"'
    assert error.data["path"] == "layout"
    assert client.table("demo")["state"] == "absent"


def test_load_checks_its_parameters(client, checkpoint):
    error = refused(client, "load", table="extra",
                    checkpoint=str(checkpoint), layout="tiled")
    assert error.name == "InvalidArgument"
    assert error.data["path"] == "layout"
    error = refused(client, "load", table="../extra",
                    checkpoint=str(checkpoint))
    assert error.name == "InvalidArgument"
    assert [t["name"] for t in client.call("tables")["tables"]] == ["demo"]


def test_verify(client):
    error = refused(client, "verify", table="demo")
    assert error.name == "NotReady"
    client.load("demo")
    job = client.finish(client.call("verify", table="demo")["job"])
    assert (job["kind"], job["state"]) == ("verify", "done")
    assert job["bytes_done"] == job["bytes_total"] > 0
    assert client.table("demo")["state"] == "ready"


# ---- attach ----

def attached(client, **params):
    result = client.call("attach", table="demo", **params)
    fds, client.fds = client.fds, []
    assert len(fds) == 1 + len(result["layers"])
    return result, fds


def test_attach(sidecar, client):
    error = refused(client, "attach", table="demo")
    assert error.name == "NotReady"
    client.load("demo")
    result, fds = attached(client)
    try:
        assert result["table"] == "demo"
        assert result["generation"] == 1
        assert result["boot_epoch"] == client.hello["boot_epoch"]
        table = client.table("demo")
        assert result["content_id"] == table["content_id"]
        assert table["leases"] == 1
        assert result["control"] == {"fd": 0}
        assert [x["fd"] for x in result["layers"]] == [1, 2]
        for shown, layer in zip(table["layers"], result["layers"]):
            assert layer["layer_id"] == shown["layer_id"]
            assert layer["row_begin"] == 0
            assert layer["row_end"] == shown["rows"]
            assert layer["local_heads"] == layer["head_end"]
            fd = fds[layer["fd"]]
            assert os.fstat(fd).st_size == shown["bytes"]
            assert os.pread(fd, 8, 0) == b"EGRMDSG1"
        for fd in fds:
            with pytest.raises(OSError):
                os.write(fd, b"x")
            with pytest.raises(OSError):
                os.ftruncate(fd, 0)
        assert client.call("detach", lease=result["lease"]) == {}
        assert client.table("demo")["leases"] == 0
        error = refused(client, "detach", lease=result["lease"])
        assert (error.name, error.data["path"]) == ("NotFound", "lease")
    finally:
        for fd in fds:
            os.close(fd)


def test_attach_one_layer_and_ranks(client):
    client.load("demo")
    ids = [x["layer_id"] for x in client.table("demo")["layers"]]
    result, fds = attached(client, layers=[ids[1]])
    for fd in fds:
        os.close(fd)
    assert [x["layer_id"] for x in result["layers"]] == [ids[1]]
    heads = result["layers"][0]["head_end"]
    rows = result["layers"][0]["row_end"]
    assert heads > 1
    at = 0
    for rank in range(2):
        result, fds = attached(client, layers=[ids[1]], tp_rank=rank,
                               tp_size=2)
        for fd in fds:
            os.close(fd)
        layer = result["layers"][0]
        assert layer["row_begin"] == at
        assert layer["local_heads"] == (heads + 1) // 2
        at = layer["row_end"]
    assert at == rows
    assert client.table("demo")["leases"] == 3


def test_attach_refuses(client):
    client.load("demo")
    ids = [x["layer_id"] for x in client.table("demo")["layers"]]
    for params, name, path in [
            ({"layers": [ids[0], 999]}, "NotFound", "layers[1]"),
            ({"layers": [ids[0], ids[0]]}, "InvalidArgument", "layers[1]"),
            ({"layers": []}, "InvalidArgument", "layers"),
            ({"layers": ["1"]}, "InvalidArgument", "layers"),
            ({"tp_rank": 2, "tp_size": 2}, "InvalidArgument", None),
            ({"tp_rank": -1}, "InvalidArgument", "tp_rank"),
            ({"tp_size": 0}, "InvalidArgument", "tp_size"),
            ({"tp_size": 100000}, "ShardInvalid", None)]:
        error = refused(client, "attach", table="demo", **params)
        assert error.name == name, (params, error)
        assert path is None or error.data["path"] == path
        assert client.fds == []
    assert client.table("demo")["leases"] == 0


def test_report_05_lease_ends_with_the_connection(sidecar, client):
    client.load("demo")
    other = sidecar.client()
    other.call("attach", table="demo")
    other.call("attach", table="demo")
    assert client.table("demo")["leases"] == 2
    other.close()
    engramd.until(lambda: client.table("demo")["leases"] == 0,
                  "leases return to none")


def test_report_06_closes_before_the_reply(sidecar, client):
    """A thousand times, and neither a lease nor a descriptor stays."""
    client.load("demo")
    before = sidecar.fd_count()
    request = b'{"jsonrpc":"2.0","id":1,"method":"attach",' \
        b'"params":{"table":"demo"}}\n'
    for _ in range(1000):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.connect(str(sidecar.socket))
        sock.sendall(request)
        sock.close()
    engramd.until(lambda: client.call("status")["connections"] == 1,
                  "all connections are gone")
    assert client.table("demo")["leases"] == 0
    assert sidecar.fd_count() == before


def test_attach_and_detach_in_one_write(sidecar, client):
    """The lease has ended when the descriptors are sent: they must be the
    right ones all the same."""
    client.load("demo")
    lease = client.call("attach", table="demo")["lease"]
    client.close_fds()
    attach = client.request("attach", table="demo")
    detach = client.request("detach", lease=lease + 1)
    client.answer(attach)
    client.answer(detach)
    assert os.pread(client.fds[1], 8, 0) == b"EGRMDSG1"
    client.call("detach", lease=lease)
    assert client.table("demo")["leases"] == 0


# ---- jobs, clients, events ----

def test_jobs(client):
    for method in ("job.get", "job.wait", "job.cancel"):
        error = refused(client, method, job=4711)
        assert (error.name, error.data["path"]) == ("NotFound", "job")
    number = client.call("load", table="demo")["job"]
    job = client.finish(number)
    assert job == client.call("job.get", job=number)
    assert set(job) == {"job", "kind", "table", "state", "bytes_total",
                        "bytes_done", "rate", "eta_seconds", "layers", "phase",
                        "age_seconds", "generation", "unchanged", "not_adopted",
                        "error"}
    assert job["state"] == "done" and job["error"] is None
    # an ended job stays as it is
    assert client.call("job.cancel", job=number) == job
    assert client.call("job.wait", job=number) == job


def test_wait_does_not_hold_up_others(sidecar, client):
    """job.wait answers later; requests behind it are answered now."""
    client.load("demo")
    holder = sidecar.client()
    holder.call("attach", table="demo")
    number = client.call("unload", table="demo")["job"]
    wait = client.request("job.wait", job=number)
    ping = client.request("ping")
    assert client.answer(ping) == {}
    short = client.call("job.wait", job=number, timeout_seconds=0.01)
    assert short["state"] == "running"
    holder.close()
    assert client.answer(wait)["state"] == "done"


def test_waiter_goes_away(sidecar, client):
    client.load("demo")
    holder = sidecar.client()
    holder.call("attach", table="demo")
    number = client.call("unload", table="demo")["job"]
    other = sidecar.client()
    other.request("job.wait", job=number)
    assert other.call("ping") == {}
    other.close()
    holder.close()
    assert client.finish(number)["state"] == "done"


def test_clients(sidecar, client):
    client.load("demo")
    other = sidecar.client()
    assert other.call("client.name", name="engine-0") == {}
    lease = other.call("attach", table="demo")["lease"]
    clients = client.call("clients")["clients"]
    assert len(clients) == 2
    shown = clients[1]
    assert shown["name"] == "engine-0"
    assert shown["pid"] == os.getpid()
    assert (shown["uid"], shown["gid"]) == (os.getuid(), os.getgid())
    assert shown["requests"] == 2
    assert [x["lease"] for x in shown["leases"]] == [lease]
    assert shown["leases"][0]["table"] == "demo"
    assert shown["leases"][0]["generation"] == 1
    assert refused(other, "client.name", name="").data["path"] == "name"
    assert refused(other, "client.name", name="x" * 64).name == \
        "InvalidArgument"
    for control in "\x1b[2J", "a\n", "\x7f", "\x9b":
        assert refused(other, "client.name", name=control).message == \
            "name: control characters are not allowed"
    assert other.call("client.name", name="moteur-\xe9\xa0") == {}


def test_events(sidecar, client):
    watcher = sidecar.client()
    assert watcher.call("events.subscribe") == {}
    assert watcher.event("event.table")["state"] == "absent"
    number = client.call("load", table="demo")["job"]
    assert watcher.event("event.job", job=number)["state"] == "running"
    assert watcher.event("event.table", name="demo")["state"] == "loading"
    table = watcher.event("event.table", state="ready")
    assert table["generation"] == 1
    assert watcher.event("event.job", job=number)["state"] == "done"
    other = sidecar.client()
    number = watcher.event("event.client", change="connected")["connection"]
    lease = other.call("attach", table="demo")["lease"]
    assert watcher.event("event.client",
                         change="attached")["connection"] == number
    other.call("detach", lease=lease)
    watcher.event("event.client", change="detached")
    other.close()
    assert watcher.event("event.client",
                         change="closed")["connection"] == number
    assert watcher.call("events.unsubscribe") == {}
    watcher.notifications.clear()
    sidecar.client()
    assert watcher.call("ping") == {}
    assert watcher.notifications == []


def test_subscription_starts_with_running_jobs(sidecar, client):
    client.load("demo")
    holder = sidecar.client()
    holder.call("attach", table="demo")
    number = client.call("unload", table="demo")["job"]
    client.call("events.subscribe")
    assert client.event("event.table")["state"] == "draining"
    assert client.event("event.job")["job"] == number
    holder.close()
    client.event("event.table", state="absent")


# ---- configuration, log, shutdown ----

def test_config_get(sidecar, client):
    assert client.call("config.get") == {"config": sidecar.config}


def test_config_validate(sidecar, client):
    assert client.call("config.validate", config=sidecar.config) == \
        {"valid": True}
    error = refused(client, "config.validate",
                    config={**sidecar.config, "soket": "x"})
    assert error.name == "ConfigInvalid"
    assert error.data["path"] == "soket"


def test_log_set_level(sidecar, client):
    assert client.call("log.set_level", level="error") == \
        {"level": "error", "previous": "debug"}
    assert client.call("log.set_level", level="debug") == \
        {"level": "debug", "previous": "error"}
    error = refused(client, "log.set_level", level="inf")
    assert error.data == {"name": "InvalidArgument", "path": "level",
                          "fix": 'did you mean "info"?'}


def test_log_is_json_lines(make):
    sidecar = make(log={"level": "debug", "format": "json"})
    sidecar.ping()
    lines = [json.loads(line) for line in sidecar.log().splitlines()]
    assert {"time", "level", "msg"} <= set(lines[0])
    assert any(line["msg"] == "ready" and
               line["instance"] == sidecar.instance for line in lines)


def test_log_that_nobody_reads(make):
    """A full pipe costs lines of the log, never an answer; how many is
    said."""
    sidecar = make(start=False)
    reader, writer = os.pipe()
    sidecar.process = subprocess.Popen(
        [engramd.ENGRAMD, "-c", sidecar.config_file],
        stdin=subprocess.DEVNULL, stderr=writer)
    os.close(writer)
    sidecar.wait_answer()
    try:
        for _ in range(1000):
            sidecar.ping()  # two lines of some 100 bytes
        os.set_blocking(reader, False)
        text = b""
        while b"msg=stopping" not in text:
            try:
                text += os.read(reader, 1 << 20)
            except BlockingIOError:
                sidecar.signal(signal.SIGTERM)
                assert engramd.until(
                    lambda: select.select([reader], [], [], 0)[0],
                    "the log goes on")
    finally:
        os.close(reader)
    sidecar.log_file.write_bytes(text)
    lost = re.search(rb'level=warn msg="nobody read the log: lines were '
                     rb'dropped" lines=(\d+)\n', text)
    assert lost and int(lost[1]) > 100
    assert all(re.match(rb"time=\S+ level=", x)
               for x in text.splitlines())


def test_shutdown(sidecar, client):
    client.call("events.subscribe")
    client.load("demo")
    assert client.call("shutdown") == {}
    client.event("event.shutdown")
    while client.read_line() is not None:
        pass  # what was under way, then the end
    assert sidecar.wait() == 0


def test_access(make, checkpoint):
    """As root every list lets us in, so drop to another user."""
    if os.geteuid() != 0:
        pytest.skip("needs root to become another user")
    sidecar = make([{"name": "demo", "checkpoint": str(checkpoint),
                     "load": "on_demand"}],
                   socket={"mode": "0666"},
                   access={"read": {"uids": [65533, 65534]},
                           "change": {"uids": [65533]}})
    os.chmod(sidecar.run, 0o755)

    def as_user(uid, method, **params):
        client = connect_as(sidecar, uid, 0, [])
        try:
            return client.call(method, **params)
        finally:
            client.close()

    assert as_user(65534, "ping") == {}
    with pytest.raises(RpcError) as caught:
        as_user(65534, "load", table="demo")
    assert caught.value.name == "PermissionDenied"
    assert caught.value.data["fix"] == \
        "add it to access.change of the configuration"
    with pytest.raises(RpcError) as caught:
        as_user(65532, "ping")
    assert caught.value.name == "PermissionDenied"
    assert as_user(65533, "load", table="demo") == {"job": 1}


def test_access_by_group(make):
    """The primary group counts, and so do the others, as for a file."""
    if os.geteuid() != 0:
        pytest.skip("needs root to become another user")
    sidecar = make(socket={"mode": "0666"},
                   access={"read": {"gids": [65531]}})
    os.chmod(sidecar.run, 0o755)
    for gid, groups in (65531, []), (65534, [65530, 65531]):
        client = connect_as(sidecar, 65534, gid, groups)
        assert client.call("ping") == {}
        client.close()
    client = connect_as(sidecar, 65534, 65534, [65530])
    error = refused(client, "ping")
    client.close()
    assert error.name == "PermissionDenied"
    assert error.message == 'uid 65534, gid 65534 may not call "ping"'


def test_group_of_the_socket(make):
    """A member gets through the directory that engramd made."""
    if os.geteuid() != 0:
        pytest.skip("needs root to become another user")
    group = grp.getgrgid(1) if os.getgid() != 1 else grp.getgrgid(2)
    sidecar = make(socket={"group": group.gr_name})
    assert sidecar.run.stat().st_gid == group.gr_gid
    assert sidecar.socket.stat().st_gid == group.gr_gid
    client = connect_as(sidecar, 65534, 65534, [group.gr_gid])
    assert client.call("ping") == {}
    client.close()
    with pytest.raises(PermissionError):
        connect_as(sidecar, 65534, 65534, [])


def test_lent_descriptors_are_for_reading(make, checkpoint):
    """A client of another user can not make itself a writable one."""
    if os.geteuid() != 0:
        pytest.skip("needs root to become another user")
    sidecar = make([{"name": "demo", "checkpoint": str(checkpoint),
                     "load": "on_demand"}])
    client = sidecar.client()
    client.load("demo")
    client.call("attach", table="demo")
    os.setegid(65534)
    os.seteuid(65534)
    try:
        for fd in client.fds:
            for attempt in (
                    lambda: os.open(f"/proc/self/fd/{fd}", os.O_RDWR),
                    lambda: os.pwrite(fd, b"x", 0),
                    lambda: os.ftruncate(fd, 0),
                    lambda: os.fchmod(fd, 0o666),
                    lambda: mmap.mmap(fd, 4096)):
                with pytest.raises(OSError):
                    attempt()
    finally:
        os.seteuid(0)
        os.setegid(0)


# ---- peers that break the rules ----

def recovered(sidecar, before):
    """The sidecar answers, and holds no descriptor more than before."""
    sidecar.ping()
    engramd.until(lambda: sidecar.fd_count() == before,
                  f"descriptors return to {before}")


def exchange(sidecar, data, pieces=None):
    """Send, half-close, and return all that is answered after the hello."""
    with sidecar.connection() as client:
        client.greet()
        try:
            for piece in pieces or [data]:
                client.send(piece)
            client.sock.shutdown(socket.SHUT_WR)
        except BrokenPipeError:
            pass  # closed on us in the middle, as it may
        lines = []
        while (line := client.read_line()) is not None:
            lines.append(line.decode() + "\n")
        return "".join(lines)


@pytest.mark.parametrize("case", sorted(p.name for p in BAD.iterdir()))
def test_bad_message(sidecar, case):
    """tests/bad/control/CASE: the bytes of `send` get the lines of
    `expected`, whole and in single bytes."""
    before = sidecar.fd_count()
    data = (BAD / case / "send").read_bytes()
    expected = (BAD / case / "expected").read_text()
    assert exchange(sidecar, data) == expected
    assert exchange(sidecar, data,
                    [data[i:i + 1] for i in range(len(data))]) == expected
    recovered(sidecar, before)


def test_many_requests_in_one_write(sidecar):
    text = b"".join(b'{"jsonrpc":"2.0","id":%d,"method":"ping"}\n' % i
                    for i in range(1000))
    lines = exchange(sidecar, text).splitlines()
    assert [json.loads(line)["id"] for line in lines] == list(range(1000))


def test_oversized_line(sidecar):
    before = sidecar.fd_count()
    answer = json.loads(exchange(sidecar, b"[" + b" " * (1 << 20)))
    assert answer["error"]["message"] == "a line is longer than 1048576 bytes"
    assert answer["error"]["code"] == -32700
    recovered(sidecar, before)


def test_longest_line(sidecar):
    """One that just fits is served."""
    text = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
    text += b" " * ((1 << 20) - 1 - len(text)) + b"\n"
    assert json.loads(exchange(sidecar, text))["result"] == {}
    assert json.loads(exchange(sidecar, b" " + text))["error"]["code"] == \
        -32700


def test_peer_that_never_reads(sidecar):
    """Its requests wait; others are served."""
    before = sidecar.fd_count()
    with sidecar.connection() as client:
        client.sock.setblocking(False)
        line = b'{"jsonrpc":"2.0","id":1,"method":"rpc.discover"}\n' * 100
        sent = 0
        try:
            while sent < 64 << 20:
                sent += client.sock.send(line)
        except BlockingIOError:
            pass
        assert sent < 64 << 20
        sidecar.ping()
    recovered(sidecar, before)


def test_subscriber_that_never_reads(sidecar):
    """It is told so, and dropped.  Connections that come and go are events
    enough."""
    before = sidecar.fd_count()
    with sidecar.connection() as lazy:
        lazy.greet()
        lazy.call("events.subscribe")

        def dropped():
            for _ in range(1000):
                with socket.socket(socket.AF_UNIX) as sock:
                    sock.connect(str(sidecar.socket))
            return "does not read" in sidecar.log()

        engramd.until(dropped, "the subscriber is dropped")
        last = None
        while (line := lazy.read()) is not None:
            last = line
        assert last["method"] == "event.dropped"
        assert last["params"] == {"reason": "too many bytes wait to be read"}
    recovered(sidecar, before)


def test_sent_descriptors_are_closed(sidecar, client):
    """Nobody asked for them; they must not pile up."""
    assert client.call("ping") == {}
    before = sidecar.fd_count()
    for _ in range(20):
        with open(os.devnull) as null:
            socket.send_fds(client.sock,
                            [b'{"jsonrpc":"2.0","id":0,"method":"ping"}\n'],
                            [null.fileno()] * 8)
        assert client.read()["result"] == {}
    recovered(sidecar, before)


def test_max_connections(make):
    sidecar = make(limits={"connections": 2})
    first, second = sidecar.client(), sidecar.client()
    with sidecar.connection() as third:
        error = third.read()["error"]
        assert error["data"]["name"] == "Busy"
        assert error["message"] == "2 connections are open"
        assert error["data"]["needed"] == 3
        assert error["data"]["available"] == 2
        assert third.read() is None
    first.close()
    sidecar.clients.remove(first)
    engramd.until(lambda: second.call("status")["connections"] == 1,
                  "the connection is gone")
    sidecar.ping()
