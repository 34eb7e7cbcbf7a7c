# SPDX-License-Identifier: Apache-2.0
"""engramctl's words, exit codes and output, against a fake sidecar."""
import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import termios

import pytest

from ctl import CTL, run
from fake_sidecar import EPOCH, Error, FakeSidecar

TABLE = {"name": "demo", "state": "ready", "generation": 3,
         "content_id": "00ff" * 8, "checkpoint": "/c", "layout": "packed",
         "bytes": 3 << 30, "leases": 2, "job": None, "error": None,
         "locked": True, "huge_advice": None,
         "layers": [{"layer_id": 1, "rows": 1000, "dim": 256, "bytes": 1 << 20,
                     "huge_bytes": 1 << 20, "segment": "s"},
                    {"layer_id": 14, "rows": 24, "dim": 256, "bytes": 1 << 20,
                     "huge_bytes": 1 << 20, "segment": "t"}]}
LOADING = {**TABLE, "name": "big", "state": "loading", "generation": 0,
           "content_id": None, "layers": [], "bytes": 0, "leases": 0}
JOB = {"job": 7, "kind": "load", "table": "demo", "state": "running",
       "bytes_total": 200, "bytes_done": 50, "rate": 25.0, "eta_seconds": 6.0,
       "phase": "reading", "age_seconds": 2.0, "error": None}
STATUS = {"instance": "default", "pid": 4711, "uptime_seconds": 192.5,
          "boot_epoch": EPOCH, "connections": 3,
          "memory": {"backing": "shm", "room": 5 << 30, "locked": 0},
          "tables": [TABLE], "jobs": [JOB]}


@pytest.fixture
def sidecar(tmp_path):
    servers = []

    def start(**methods):
        server = FakeSidecar(tmp_path / "sock", {
            name.replace("__", "."): result
            for name, result in methods.items()})
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.close()


def ctl(server, *args, **kwargs):
    return run("--socket", server.path, *args, **kwargs)


# ---- the command line ----

INTEGERS = ("give integers from 0 to 2147483647 with commas between them, as "
            "1,2,3")


@pytest.mark.parametrize("args,message,fix", [
    ([], "no command given", "engramctl --help lists the commands"),
    (["staus"], 'unknown command "staus"', 'did you mean "status"?'),
    (["zzzzzzz"], 'unknown command "zzzzzzz"',
     "engramctl --help lists the commands"),
    (["status", "--jsno"], 'unknown option "--jsno"',
     'did you mean "--json"?'),
    (["hash", "demo", "--token", "1"], 'unknown option "--token"',
     'did you mean "--tokens"?'),
    (["hash", "demo", "--zzzzzzzzz"], 'unknown option "--zzzzzzzzz"',
     "engramctl hash --help lists the options"),
    (["hash"], "hash: an argument is missing",
     "usage: engramctl hash TABLE --tokens IDS [--layer ID]"),
    (["hash", "demo"], "hash: --tokens is missing",
     "usage: engramctl hash TABLE --tokens IDS [--layer ID]"),
    (["hash", "demo", "more"], 'hash: "more" is too much',
     "usage: engramctl hash TABLE --tokens IDS [--layer ID]"),
    (["hash", "demo", "--tokens"], "--tokens needs a value, IDS",
     "put it after the option"),
    (["hash", "demo", "--tokens", "1,x,3"], '--tokens: "x" is no integer',
     INTEGERS),
    (["hash", "demo", "--tokens", "1,,2"], '--tokens: "" is no integer',
     INTEGERS),
    (["hash", "demo", "--tokens", "1 2"], '--tokens: "1 2" is no integer',
     INTEGERS),
    (["hash", "demo", "--tokens=-1"], '--tokens: "-1" is out of range',
     INTEGERS),
    (["hash", "demo", "--tokens", "2,2147483648"],
     '--tokens: "2147483648" is out of range', INTEGERS),
    (["hash", "demo", "--tokens", "1.5"], '--tokens: "1.5" is no integer',
     INTEGERS),
    (["bench", "demo", "--rows", "x"], '--rows: "x" is no integer',
     "give an integer from 1 to 16777216"),
    (["bench", "demo", "--seconds", "x"], '--seconds: "x" is no number',
     "give a number from 0.01 to 3600"),
    (["hash", "demo", "--text", "x"], 'unknown option "--text"',
     "engramctl hash --help lists the options"),
    (["tables", "--text"], 'unknown option "--text"',
     "engramctl tables --help lists the options"),
    (["rows", "demo", "--ids", "1"], "rows: --layer is missing",
     "usage: engramctl rows TABLE --layer ID --ids IDS"),
    (["bench", "demo", "--seconds", "0"], '--seconds: "0" is out of range',
     "give a number from 0.01 to 3600"),
    (["bench", "demo", "--distribution", "normal"],
     '--distribution: unknown word "normal"', "use uniform or zipf"),
    (["status", "--json=1"], "--json takes no value", "leave the value out"),
    (["--timeout", "x", "status"], '--timeout: "x" is not a time',
     "give seconds, up to 1000000"),
    (["health", "read"], 'health: unknown check "read"',
     'did you mean "ready"?'),
    (["config", "validat"], 'config: unknown word "validat"',
     'did you mean "validate"?'),
    (["config", "validate"], 'config: "validate" with 0 arguments',
     "usage: engramctl config get | validate FILE"),
    (["rpc", "ping", "[1]"], "rpc: the parameters are not a JSON object",
     """give an object: '{"table": "demo"}'"""),
    (["tokmap"], "tokmap: an argument is missing",
     "usage: engramctl tokmap TABLE [--id IDS | --diff FILE | --export FILE]"),
    (["tokmap", "demo", "--id", "x"], '--id: "x" is no integer', INTEGERS),
    (["tokmap", "demo", "--id", "1", "--export", "x.npy"],
     "tokmap: --id, --diff and --export exclude each other",
     "give one of them"),
    (["tokmap", "demo", "--export", "map.txt"],
     '--export: "map.txt" has no known ending', "end it in .json or .npy"),
    (["load", "demo", "--params", "{"], "--params: not a JSON object",
     "give the keys of a table as in engramd.json"),
])
def test_usage(args, message, fix):
    result = run(*args)
    assert result.stderr == f"engramctl: {message}\n  fix: {fix}\n"
    assert result.returncode == 2
    assert result.stdout == ""


def test_help():
    text = run("--help").stdout
    commands = re.findall(r"^  ([a-z]+) ", text.split("options:")[0], re.M)
    assert commands == ["status", "tables", "load", "reload", "publish",
                        "discard", "rollback", "unload", "verify", "clients", "events", "rpc", "health", "config",
                        "hash", "rows", "lookup", "tokmap", "bench",
                        "inspect", "manifest", "prune", "shutdown"]
    assert "exit codes:" in text
    for command in commands:
        result = run(command, "--help")
        assert result.returncode == 0
        assert result.stdout.startswith(f"usage: engramctl {command}")
        assert "--json" in result.stdout
    assert run("--version").stdout == "engramctl 0.1.0\n"


def test_not_reachable(tmp_path):
    path = tmp_path / "none"
    message = f'engramd is not reachable at "{path}": No such file or directory'
    fix = "start engramd, or name its socket in ENGRAMD_SOCKET"
    for args, env in ([["--socket", str(path), "status"], {}],
                      [["status"], {"ENGRAMD_SOCKET": str(path)}]):
        result = run(*args, env=env)
        assert result.stderr == f"engramctl: {message}\n  fix: {fix}\n"
        assert result.stdout == ""
        assert result.returncode == 3
    result = run("status", "--json", "--socket", str(path))
    error = json.loads(result.stdout)["error"]
    assert error == {"name": "Disconnected", "message": message, "fix": fix,
                     "path": str(path), "errno": 2}
    result = run("--instance", "t-none", "health", "live")
    assert '"/run/engramd/t-none.sock"' in result.stderr
    assert result.returncode == 3


def test_timeout(tmp_path):
    import socket
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(tmp_path / "mute"))
        mute.listen(1)
        result = run("--socket", str(tmp_path / "mute"), "--timeout", "0.05",
                     "status")
    assert result.stderr.splitlines()[0] == (
        "engramctl: engramd did not greet in time")
    assert result.returncode == 6


# ---- what is shown ----

def test_status(sidecar):
    server = sidecar(status=STATUS)
    text = ctl(server, "status").stdout
    assert text == """\
instance     default
sidecar      engramd 0.1.0, pid 4711, up 3 min 12 s
boot epoch   6f0c1122334455aa
connections  3
memory       shm, 0 B locked, 5.0 GiB free

TABLE  STATE  GENERATION  LAYERS  ROWS  SIZE     HUGE  LEASES  CONTENT
demo   ready  3           2       1024  3.0 GiB  100%  2       00ff00ff00ff00ff00ff00ff00ff00ff
job 7: load demo running, 50 B of 200 B
"""
    assert json.loads(ctl(server, "--json", "status").stdout) == STATUS


@pytest.mark.parametrize("limit,text", [(64, "3 of 64"), (None, "3")])
def test_status_of_memfds(sidecar, limit, text):
    memory = {"backing": "memfd", "room": None, "locked": 0,
              "fd_store": {"descriptors": 3, "max": limit}}
    server = sidecar(status={**STATUS, "memory": memory})
    assert ("memory       memfd, 0 B locked, "
            f"{text} descriptors kept by the service manager"
            ) in ctl(server, "status").stdout.splitlines()


def test_tables(sidecar):
    failed = {**LOADING, "state": "failed",
              "error": {"message": "no shard 48", "data": {}}}
    server = sidecar(tables=lambda p: {"tables": [failed]})
    result = ctl(server, "tables", "big")
    assert server.calls == [("tables", {"table": "big"})]
    assert result.stdout.splitlines()[-1] == (
        "big: last load failed: no shard 48")


def test_huge_pages_are_lacking(sidecar):
    layers = [{**TABLE["layers"][0]},
              {**TABLE["layers"][1], "huge_bytes": (1 << 20) * 86 // 100}]
    table = {**TABLE, "layers": layers, "huge_advice": "mount that"}
    server = sidecar(tables=lambda p: {"tables": [table]})
    lines = ctl(server, "tables").stdout.splitlines()
    assert " 85%  " in lines[1]
    assert lines[2:] == ["demo: on huge pages: layer 1 100 %, layer 14 85 %",
                         "  for more: mount that"]
    # of an adopted table it may not know, and an older engramd does not say
    for forget in (lambda x: x.update(huge_bytes=None),
                   lambda x: x.pop("huge_bytes")):
        for layer in layers:
            forget(layer)
        lines = ctl(server, "tables").stdout.splitlines()
        assert len(lines) == 2 and "  -     2       00ff" in lines[1]


def test_nodes_of_memory(sidecar):
    """Said of tables that are on several."""
    one = [{"node": 1, "bytes": 1 << 20}]
    two = [{"node": 0, "bytes": 1 << 19}, {"node": 1, "bytes": 1 << 19}]
    layers = [{**layer, "bytes": 1 << 20, "nodes": nodes}
              for layer, nodes in zip(TABLE["layers"], (two, one))]
    table = {**TABLE, "layers": layers}
    server = sidecar(tables=lambda p: {"tables": [table]})
    lines = ctl(server, "tables").stdout.splitlines()
    assert lines[2:] == ["demo: on nodes: layer 1 0: 50 % 1: 50 %"]
    layers[0]["nodes"] = None
    assert len(ctl(server, "tables").stdout.splitlines()) == 2


def test_not_taken_over(sidecar):
    """After an upgrade: of a table, and while it loads."""
    why = "a reload is needed, the ABI changed from version 1 to 2"
    server = sidecar(
        status={**STATUS, "tables": [{**TABLE, "not_adopted": why}],
                "jobs": [{**JOB, "table": "big", "not_adopted": why}]})
    lines = ctl(server, "status").stdout.splitlines()
    for name in "demo", "big":
        assert f"{name}: not taken over from the last engramd: {why}" in lines


OTHER = "11ee" * 8


def test_generations(sidecar):
    """Where more than one is in memory."""
    def generation(number, state, content, leases, superseded):
        return {"generation": number, "state": state, "content_id": content,
                "checkpoint": "/c", "bytes": 3 << 30, "leases": leases,
                "superseded_seconds": superseded}

    only = generation(3, "current", TABLE["content_id"], 0, None)
    table = {**TABLE, "generations": [
        generation(4, "held", OTHER, 0, None),
        generation(3, "current", TABLE["content_id"], 2, None),
        generation(2, "superseded", OTHER, 1, 72.5)]}
    server = sidecar(tables=lambda _: {"tables": [
        {**TABLE, "name": "one", "generations": [only]}, table]})
    text = ctl(server, "tables").stdout
    assert text.split("\n\n")[1] == """\
TABLE  GENERATION  STATE       SUPERSEDED  SIZE     LEASES  CONTENT
demo   4           held        -           3.0 GiB  0       11ee11ee11ee11ee11ee11ee11ee11ee
demo   3           current     -           3.0 GiB  2       00ff00ff00ff00ff00ff00ff00ff00ff
demo   2           superseded  1 min 12 s  3.0 GiB  1       11ee11ee11ee11ee11ee11ee11ee11ee
"""
    table["generations"] = [only]
    assert "\n\n" not in ctl(server, "tables").stdout


def test_clients(sidecar):
    server = sidecar(clients={"clients": [
        {"connection": 2, "pid": 10, "uid": 0, "gid": 0, "name": "vllm",
         "age_seconds": 7200.0, "requests": 5,
         "leases": [{"lease": 1, "table": "demo", "generation": 3,
                     "layers": [1], "writable": False, "age_seconds": 1.0},
                    {"lease": 2, "table": "big", "generation": 1,
                     "layers": [1], "writable": True, "parked": True,
                     "age_seconds": 1.0}]},
        {"connection": 3, "pid": 11, "uid": 0, "gid": 0, "name": "sglang",
         "age_seconds": 7200.0, "requests": 6, "leases": [], "rings": [
             {"ring": 1, "bytes": 4096, "leases": [], "batches": 2,
              "refused": 0, "rows": 480},
             {"ring": 4, "bytes": 4096, "leases": [], "batches": 1,
              "refused": 1, "rows": 20}]}]})
    lines = ctl(server, "clients").stdout.splitlines()
    assert lines[1].split() == ["2", "10", "0", "vllm", "2", "h", "0", "min",
                                "5", "-", "demo", "g3,", "big", "g1",
                                "writable", "parked"]
    assert lines[2].split() == ["3", "11", "0", "sglang", "2", "h", "0", "min",
                                "6", "2", "rings,", "500", "rows", "-"]


def test_health(sidecar):
    tables = {"tables": [TABLE, LOADING]}
    server = sidecar(ping={}, tables=tables)
    assert ctl(server, "health", "live").stdout == "live\n"
    assert ctl(server, "health", "ready", "demo").stdout == "ready\n"
    assert json.loads(ctl(server, "health", "ready", "demo",
                          "--json").stdout) == {"ready": True}
    for args in (["ready"], ["ready", "demo", "big"]):
        result = ctl(server, "health", *args)
        assert result.stderr == 'engramctl: table "big" is loading\n'
        assert result.returncode == 4
    result = ctl(server, "health", "ready", "x")
    assert result.stderr == 'engramctl: no table "x"\n'
    assert result.returncode == 4
    tables["tables"] = []
    assert ctl(server, "health", "ready").returncode == 0


def test_error_answer(sidecar):
    def refuse(_):
        raise Error("PermissionDenied", "uid 5 may not", fix="ask the admin",
                    path="access.change")

    server = sidecar(shutdown=refuse)
    result = ctl(server, "rpc", "shutdown", "--json")
    assert result.stderr == ("engramctl: uid 5 may not\n"
                             "  fix: ask the admin\n")
    assert json.loads(result.stdout) == {"error": {
        "name": "PermissionDenied", "message": "uid 5 may not",
        "fix": "ask the admin", "path": "access.change"}}
    assert result.returncode == 5


@pytest.mark.parametrize("keep", [False, True])
def test_shutdown(sidecar, keep):
    """This sidecar is the process that tests: it goes on."""
    server = sidecar(shutdown={})
    args = ["shutdown"] + ["--keep"] * keep
    params = {"keep": True} if keep else {}
    left = "; its tables are left to the next one" if keep else ""
    result = ctl(server, *args, "--no-wait")
    assert (result.returncode, result.stdout) == (
        0, f"engramd is stopping{left}\n")
    assert json.loads(ctl(server, *args, "--no-wait", "--json").stdout) == {
        "stopped": False, "keep": keep}
    result = ctl(server, *args, "--timeout", "0.1")
    assert (result.returncode, result.stdout) == (6, "")
    assert result.stderr == (
        "engramctl: engramd is still stopping\n  fix: look into its log; a "
        "second SIGTERM stops it at once\n")
    assert server.calls == 3 * [("shutdown", params)]


def test_rpc(sidecar):
    server = sidecar(echo=lambda params: params)
    result = ctl(server, "rpc", "echo", '{"a": [1, {"b": null}]}')
    assert json.loads(result.stdout) == {"a": [1, {"b": None}]}


def test_config(sidecar, tmp_path):
    server = sidecar(config__get={"config": {"tables": []}},
                     config__validate={"valid": True})
    assert json.loads(ctl(server, "config", "get").stdout) == {"tables": []}
    good = tmp_path / "good.json"
    good.write_text('{"instance": "x"}')
    result = ctl(server, "config", "validate", str(good))
    assert result.stdout == f"{good}: valid\n"
    assert server.calls[-1] == ("config.validate",
                                {"config": {"instance": "x"}})
    bad = tmp_path / "bad.json"
    bad.write_text('{\n"a": 1,\n"a": 2}')
    result = ctl(server, "config", "validate", str(bad))
    assert result.stderr == (f"engramctl: {bad}:3: duplicate object key near "
                             "'\"a\"'\n  fix: name a configuration in "
                             "JSON\n")
    assert result.returncode == 1
    result = ctl(server, "config", "validate", "/nonexistent")
    assert result.stderr == ("engramctl: unable to open /nonexistent: No such "
                             "file or directory\n  fix: name a configuration "
                             "in JSON\n")


def test_events(sidecar):
    server = sidecar(events__subscribe={})
    server.events = [
        {"method": "event.table", "params": TABLE},
        {"method": "event.job", "params": JOB},
        {"method": "event.client", "params": {"connection": 4,
                                              "change": "closed"}},
        {"method": "event.overdue", "params": {
            "table": "demo", "generation": 2, "superseded_seconds": 61.0,
            "holders": [{"connection": 4, "pid": 10, "name": "vllm",
                         "age_seconds": 99.0},
                        {"connection": 5, "pid": 11, "name": "",
                         "age_seconds": 70.0}]}}]
    result = ctl(server, "events", "--count", "4")
    assert result.stdout == ("table demo: ready, generation 3, 2 leases\n"
                             "job 7: load demo running, 50 of 200 bytes\n"
                             "client 4: closed\n"
                             "table demo: generation 2 is still held after "
                             "1 min 1 s by pid 10 (vllm), pid 11\n")
    lines = ctl(server, "events", "--count", "2", "--json").stdout.split("\n")
    assert [json.loads(line)["method"] for line in lines[:2]] == [
        "event.table", "event.job"]


# ---- jobs ----

def steps(*states):
    """job.wait answers these in turn, the last for ever."""
    left = list(states)

    def wait(_):
        return left.pop(0) if len(left) > 1 else left[0]

    return wait


DONE = {**JOB, "state": "done", "bytes_done": 200, "eta_seconds": None}


def test_load(sidecar, tmp_path):
    server = sidecar(load={"job": 7}, job__wait=steps(JOB, JOB, DONE))
    result = ctl(server, "load", "demo", "--checkpoint", "c", "--layout",
                 "split", "--params", '{"verify": false}', cwd=tmp_path)
    assert result.stderr == ""  # too quick for a line
    assert result.stdout == "load demo: done, 200 B in 2.0 s (100 B/s)\n"
    assert server.calls[0] == ("load", {
        "table": "demo", "checkpoint": f"{tmp_path}/c", "layout": "split",
        "verify": False})
    assert [call[0] for call in server.calls[1:]] == ["job.wait"] * 3


def test_lines_without_a_terminal(sidecar):
    server = sidecar(load={"job": 7}, job__wait=steps(JOB, JOB, DONE))
    result = ctl(server, "load", "demo", "--progress", "0")
    line = "load demo: reading  25 %  50 B of 200 B  25 B/s  6.0 s left\n"
    assert result.stderr == 2 * line
    assert result.returncode == 0


def test_lines_with_layers(sidecar):
    layers = [{"layer_id": 1, "bytes_total": 100, "bytes_done": 50},
              {"layer_id": 14, "bytes_total": 100, "bytes_done": 0}]
    server = sidecar(load={"job": 7},
                     job__wait=steps({**JOB, "layers": layers}, DONE))
    result = ctl(server, "load", "demo", "--progress", "0")
    assert result.stderr == ("load demo: reading  25 %  50 B of 200 B  25 B/s"
                             "  6.0 s left  (layer 1: 50 %, 14: 0 %)\n")


RELOADED = {**DONE, "kind": "reload", "generation": 4, "unchanged": False}


def test_reload(sidecar, tmp_path):
    server = sidecar(reload={"job": 7}, job__wait=RELOADED)
    result = ctl(server, "reload", "demo")
    assert result.stdout == (
        "reload demo: generation 4, 200 B in 2.0 s (100 B/s)\n")
    result = ctl(server, "reload", "demo", "--checkpoint", "c", "--hold",
                 "--force", cwd=tmp_path)
    assert result.stdout == (
        "reload demo: generation 4 is held, 200 B in 2.0 s (100 B/s)\n")
    assert [call for call in server.calls if call[0] == "reload"] == [
        ("reload", {"table": "demo"}),
        ("reload", {"table": "demo", "checkpoint": f"{tmp_path}/c",
                    "hold": True, "force": True})]
    assert json.loads(ctl(server, "reload", "demo",
                          "--json").stdout) == RELOADED
    assert ctl(server, "reload", "demo",
               "--no-wait").stdout == "reload demo: job 7\n"
    server.methods["job.wait"] = {**RELOADED, "unchanged": True}
    for more in ([], ["--hold"]):
        result = ctl(server, "reload", "demo", *more)
        assert result.stdout == "reload demo: unchanged, generation 4\n"


def test_reload_after_a_running_one(sidecar):
    """That one may have read what the checkpoint was before."""
    other = {**RELOADED, "job": 6, "state": "failed", "error": {
        "code": -32004, "message": "no room", "data": {"name": "NoSpace"}}}
    tries = []

    def reload(params):
        tries.append(params)
        if len(tries) == 1:
            raise Error("Busy", "demo is being reloaded", job=6)
        return {"job": 7}

    server = sidecar(reload=reload,
                     tables={"tables": [{**TABLE, "job": 6}]},
                     job__get={**JOB, "job": 6, "kind": "reload"},
                     job__wait=lambda p: other if p["job"] == 6 else RELOADED)
    result = ctl(server, "reload", "demo", "--force")
    assert result.stderr == ("engramctl: job 6 does that already; once more "
                             "after it\n")
    assert result.stdout.startswith("reload demo: generation 4, ")
    assert tries == 2 * [{"table": "demo", "force": True}]
    tries.clear()
    result = ctl(server, "reload", "demo", "--no-wait")
    assert result.stderr == "engramctl: demo is being reloaded\n"
    assert (result.returncode, len(tries)) == (1, 1)


def test_which_generation_is_lent(sidecar):
    lent = {"generation": 2, "content_id": OTHER}
    server = sidecar(publish=lent, rollback=lent, discard={})
    for args, said, params in (
            (["publish"], f"generation 2, content {OTHER}", {}),
            (["publish", "--content-id", OTHER],
             f"generation 2, content {OTHER}", {"content_id": OTHER}),
            (["rollback"], f"generation 2, content {OTHER}", {}),
            (["discard"], "done", {})):
        method = args[0]
        assert ctl(server, *args, "demo").stdout == f"{method} demo: {said}\n"
        assert server.calls[-1] == (method, {"table": "demo", **params})
        assert json.loads(ctl(server, *args, "demo", "--json").stdout) == (
            server.methods[method])
    server.methods.clear()
    for method in ("publish", "rollback", "discard"):
        assert ctl(server, method, "demo").returncode == 1


def test_load_json(sidecar):
    server = sidecar(load={"job": 7}, job__wait=DONE)
    assert json.loads(ctl(server, "load", "demo", "--json").stdout) == DONE


def test_load_nothing_to_do(sidecar):
    server = sidecar(load={"job": None, "generation": 2})
    result = ctl(server, "load", "demo")
    assert result.stdout == "load demo: nothing to do\n"
    assert result.returncode == 0


def test_load_no_wait(sidecar):
    server = sidecar(load={"job": 7})
    result = ctl(server, "load", "demo", "--no-wait")
    assert result.stdout == "load demo: job 7\n"
    assert json.loads(ctl(server, "load", "demo", "--no-wait",
                          "--json").stdout) == {"job": 7}


def test_load_joins_a_running_one(sidecar):
    def busy(_):
        raise Error("Busy", "demo is being loaded", job=7)

    server = sidecar(load=busy, tables={"tables": [{**TABLE, "job": 7}]},
                     job__get=JOB, job__wait=DONE)
    result = ctl(server, "load", "demo")
    assert result.stderr == "engramctl: job 7 does that already\n"
    assert result.returncode == 0
    server.methods["job.get"] = {**JOB, "kind": "verify"}
    result = ctl(server, "load", "demo")
    assert result.stderr == "engramctl: demo is being loaded\n"
    assert result.returncode == 1


def test_job_fails(sidecar):
    failed = {**JOB, "state": "failed", "error": {
        "code": -32004, "message": "no room",
        "data": {"name": "NoSpace", "fix": "make room"}}}
    server = sidecar(verify={"job": 7}, job__wait=steps(JOB, failed))
    result = ctl(server, "verify", "demo")
    assert result.stderr == "engramctl: no room\n  fix: make room\n"
    assert result.returncode == 1


def interrupt_while_waiting(server, *args):
    """Ctrl-C once the job is being waited for."""
    proc = subprocess.Popen([CTL, "--socket", server.path, *args],
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            text=True)
    server.asked.wait(30)
    proc.send_signal(signal.SIGINT)
    server.go.set()
    out, err = proc.communicate(timeout=30)
    return proc.returncode, out, err


@pytest.fixture
def slow_job(sidecar):
    import threading
    asked, go = threading.Event(), threading.Event()
    canceled = threading.Event()

    def wait(_):
        asked.set()
        go.wait(30)
        if canceled.is_set():
            return {**JOB, "state": "canceled"}
        return JOB

    def cancel(_):
        canceled.set()
        return JOB

    server = sidecar(unload={"job": 7}, job__wait=wait, job__cancel=cancel)
    server.asked, server.go = asked, go
    return server


def test_interrupt_detaches(slow_job):
    code, out, err = interrupt_while_waiting(slow_job, "unload", "demo")
    assert err == ("engramctl: detached; job 7 goes on\n"
                   '  fix: "engramctl tables" shows its progress\n')
    assert (code, out) == (130, "")
    assert "job.cancel" not in [call[0] for call in slow_job.calls]


def test_interrupt_cancels(slow_job):
    code, out, err = interrupt_while_waiting(slow_job, "unload", "demo",
                                             "--cancel-on-interrupt")
    assert err == "engramctl: the job was cancelled\n"
    assert (code, out) == (130, "")


def on_a_terminal(*args, columns=80, term="xterm", interrupt_at=None):
    """What engramctl writes to a terminal as its stderr, its stdout and its
    exit code; SIGINT once the terminal shows `interrupt_at`."""
    primary, secondary = pty.openpty()
    fcntl.ioctl(secondary, termios.TIOCSWINSZ,
                struct.pack("HHHH", 24, columns, 0, 0))
    text = b""
    with subprocess.Popen([CTL, *args], stderr=secondary,
                          stdout=subprocess.PIPE,
                          env={**os.environ, "TERM": term}) as proc:
        os.close(secondary)
        while True:
            try:
                text += os.read(primary, 4096)
            except OSError:  # EIO: the other end is closed, all is read
                break
            if interrupt_at and interrupt_at in text:
                proc.send_signal(signal.SIGINT)
                interrupt_at = None
        os.close(primary)
        out = proc.stdout.read()
    return text.decode(), out.decode(), proc.returncode


def test_bar_on_a_terminal(sidecar):
    server = sidecar(load={"job": 7}, job__wait=steps(JOB, DONE))
    text, out, code = on_a_terminal("--socket", server.path, "load", "demo",
                                    columns=100)
    bars = text.split("\r")
    assert bars[1] == ("demo reading  [######..................]  25 %  50 B "
                       "of 200 B  25 B/s  6.0 s left\x1b[K")
    assert "[########################] 100 %" in bars[2]
    assert out.startswith("load demo: done") and code == 0


def test_bar_fits_the_terminal(sidecar):
    """One that wraps would scroll with each step."""
    server = sidecar(load={"job": 7}, job__wait=steps(JOB, DONE))
    text, _, code = on_a_terminal("--socket", server.path, "load", "demo",
                                  columns=30)
    assert text.split("\r")[1] == "demo reading  [######........\x1b[K"
    assert code == 0


def test_no_bar_on_a_dumb_terminal(sidecar):
    server = sidecar(load={"job": 7}, job__wait=steps(JOB, DONE))
    text, _, code = on_a_terminal("--socket", server.path, "load", "demo",
                                  term="dumb")
    assert text == "" and code == 0


def test_interrupt_on_a_terminal(slow_job):
    """What is said then has a line of its own."""
    server = slow_job
    server.go.set()
    text, _, code = on_a_terminal("--socket", server.path, "unload", "demo",
                                  interrupt_at=b"\x1b[K")
    assert code == 130
    assert "\x1b[K\r\nengramctl: detached; job 7 goes on\r\n" in text
    assert not text.endswith("\r\n\r\n")


def test_unload_that_waits_for_leases(sidecar):
    """Says what it waits for, and who can tell more."""
    waiting = {**JOB, "kind": "unload", "phase": "waiting", "rate": 0.0,
               "bytes_done": 0, "eta_seconds": None}
    server = sidecar(unload={"job": 7},
                     job__wait=steps(waiting, {**DONE, "kind": "unload"}))
    text, out, code = on_a_terminal("--socket", server.path, "unload", "demo",
                                    columns=100)
    assert text.split("\r")[1] == (
        'unload demo: waits for its leases to end; "engramctl clients" shows '
        "whose\x1b[K")
    assert out.startswith("unload demo: done") and code == 0


def test_reload_that_waits(sidecar):
    """For leases of what is to be freed first."""
    waiting = {**JOB, "kind": "reload", "phase": "waiting", "rate": 0.0,
               "bytes_done": 0, "eta_seconds": None}
    server = sidecar(reload={"job": 7}, job__wait=steps(waiting, RELOADED))
    text, _, code = on_a_terminal("--socket", server.path, "reload", "demo",
                                  columns=120)
    assert text.split("\r")[1] == (
        "reload demo: waits for leases of the generation before to end; "
        '"engramctl clients" shows whose\x1b[K')
    assert code == 0
