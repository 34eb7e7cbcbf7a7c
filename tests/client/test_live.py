# SPDX-License-Identifier: Apache-2.0
"""engramctl and libengram against a real engramd on a synthetic checkpoint."""
import json
import os
import pathlib
import subprocess
import sys

import pytest

from ctl import BUILD, ROOT, run

sys.path[:0] = [str(ROOT / "tests" / folder)
                for folder in ("integration", "synth")]
import engramd  # noqa: E402 pylint: disable=wrong-import-position
import synth_rows  # noqa: E402 pylint: disable=wrong-import-position

LAYERS, DIM, HEADS, MAX_NGRAM = [3, 9], 64, 5, 3
COLS = HEADS * (MAX_NGRAM - 1)


@pytest.fixture(scope="module")
def sidecar(tmp_path_factory):
    directory = tmp_path_factory.mktemp("live")
    checkpoint = engramd.synth(
        directory / "model", "--layers", ",".join(map(str, LAYERS)), "--dim",
        str(DIM), "--heads", str(HEADS), "--max-ngram", str(MAX_NGRAM),
        "--engram-vocab-size", "300", "--vocab-size", "500",
        "--compressed-vocab-size", "400", "--pad-id", "7")
    server = engramd.Sidecar(directory, [
        {"name": "demo", "checkpoint": str(checkpoint), "load": "on_demand",
         "reload": {"retain_seconds": 1000}}])
    yield server
    server.stop()


@pytest.fixture
def ctl(sidecar):
    def call(*args, code=0):
        result = run("--socket", str(sidecar.socket), *args)
        assert result.returncode == code, result.stderr
        return result

    return call


@pytest.fixture
def demo(ctl):
    """The table is ready, whatever ran before."""
    ctl("load", "demo")


def rows_of(ctl):
    answer = json.loads(ctl("tables", "demo", "--json").stdout)
    return {layer["layer_id"]: layer["rows"]
            for layer in answer["tables"][0]["layers"]}


def test_life(ctl):
    ctl("unload", "demo")
    result = ctl("health", "ready", "demo", code=4)
    assert result.stderr == 'engramctl: table "demo" is absent\n'
    result = ctl("rows", "demo", "--layer", "3", "--ids", "0", code=4)
    assert result.stderr == ('engramctl: table "demo" is absent\n'
                             "  fix: load the table first\n")
    assert ctl("load", "demo").stdout.startswith("load demo: done, ")
    assert ctl("load", "demo").stdout == "load demo: nothing to do\n"
    assert ctl("health", "ready", "demo").stdout == "ready\n"
    assert ctl("verify", "demo").stdout.startswith("verify demo: done, ")
    assert "demo" in ctl("status").stdout
    assert ctl("unload", "demo").stdout.startswith("unload demo: done, ")


def test_generations(ctl, demo):
    """Reloaded, held, published and taken back."""
    def lent():
        return json.loads(ctl("tables", "demo",
                              "--json").stdout)["tables"][0]

    def states():
        return [line.split()[1:3]
                for line in ctl("tables", "demo").stdout
                .partition("\n\n")[2].splitlines()[1:]]

    first = lent()["generation"]
    assert ctl("reload", "demo").stdout == (
        f"reload demo: unchanged, generation {first}\n")
    assert states() == []
    out = ctl("reload", "demo", "--force", "--hold").stdout
    assert out.startswith(f"reload demo: generation {first + 1} is held, ")
    assert states() == [[str(first + 1), "held"], [str(first), "current"]]
    ctl("publish", "demo", "--content-id", "0" * 32, code=1)
    assert ctl("discard", "demo").stdout == "discard demo: done\n"
    assert lent()["generation"] == first
    ctl("reload", "demo", "--force", "--hold")
    content = lent()["content_id"]
    assert ctl("publish", "demo", "--content-id", content).stdout == (
        f"publish demo: generation {first + 2}, content {content}\n")
    assert ctl("rollback", "demo").stdout == (
        f"rollback demo: generation {first}, content {content}\n")
    assert states() == [[str(first), "current"],
                        [str(first + 2), "superseded"]]


def test_reload_of_what_is_not_there(ctl):
    ctl("unload", "demo")
    assert ctl("reload", "demo", code=4).stderr.endswith("  fix: load it\n")
    for command in ("publish", "discard"):
        ctl(command, "demo", code=4)
    ctl("rollback", "demo", code=1)


def test_failed(ctl, tmp_path):
    """Who asks for a table that did not load is told what to do about it."""
    where = str(tmp_path / "none")
    ctl("load", "absent", "--checkpoint", where, code=1)
    result = ctl("tokmap", "absent", code=4)
    assert result.stderr == (
        f'engramctl: table "absent" is failed: table "absent": checkpoint '
        f"{where}: No such file or directory\n"
        "  fix: name the directory that holds config.json and the "
        "safetensors files; then load it again\n")
    ctl("unload", "absent")


def test_every_row(ctl, demo):
    for layer, rows in rows_of(ctl).items():
        ids = ",".join(map(str, range(rows)))
        answer = json.loads(ctl("rows", "demo", "--layer", str(layer), "--ids",
                                ids, "--json").stdout)
        assert len(answer["rows"]) == rows
        for row in answer["rows"]:
            codes, scales = synth_rows.record(layer, row["row"], DIM)
            assert row["codes"] == codes.hex()
            assert row["scales"] == scales.hex()


def test_hash_is_within_the_table(ctl, demo):
    answer = json.loads(ctl("hash", "demo", "--tokens", "1,2,3,499",
                            "--json").stdout)
    rows = rows_of(ctl)
    assert [layer["layer_id"] for layer in answer["layers"]] == LAYERS
    for layer in answer["layers"]:
        assert len(layer["ids"]) == 4
        for ids in layer["ids"]:
            assert len(ids) == COLS
            assert ids == sorted(ids)  # columns own consecutive ranges
            assert 0 <= ids[0] and ids[-1] < rows[layer["layer_id"]]


def test_bench(ctl, demo):
    answer = json.loads(ctl("bench", "demo", "--rows", "1000", "--repeat", "3",
                            "--json").stdout)
    assert all(case["identical"] for case in answer["cases"])


def test_leases_end_with_the_client(ctl, sidecar, demo):
    program = BUILD / "bin" / "engram-example"
    env = {**os.environ, "ENGRAMD_SOCKET": str(sidecar.socket)}
    result = subprocess.run([program, "demo"], env=env, capture_output=True,
                            text=True, check=True, timeout=60)
    assert result.stdout.startswith("demo generation ")
    clients = json.loads(ctl("clients", "--json").stdout)["clients"]
    assert [client["name"] for client in clients] == ["engramctl"]
    assert json.loads(ctl("tables", "demo", "--json").stdout)["tables"][0][
        "leases"] == 0


def attach_writable(server):
    env = {**os.environ, "ENGRAMD_SOCKET": str(server.socket)}
    return subprocess.run([BUILD / "tests" / "attach_writable", "demo"],
                          env=env, capture_output=True, text=True,
                          check=False, timeout=60)


def test_attach_writable(ctl, sidecar, demo):
    result = attach_writable(sidecar)
    assert result.returncode == 0, result
    assert result.stdout.split() == ["r--s", "rw-s", "r--s", "equal"]
    assert ctl("verify", "demo").returncode == 0


def test_attach_writable_memfd(tmp_path, sidecar):
    server = engramd.Sidecar(tmp_path, sidecar.config["tables"], start=False,
                             memory={"backing": "memfd", "lock": "off"})
    server.start(wait=False)
    engramd.until(server.answers, "the sidecar answers")
    assert run("--socket", str(server.socket), "load", "demo").returncode == 0
    result = attach_writable(server)
    server.stop()
    assert result.returncode == 1, result
    name, message, fix = result.stdout.splitlines()
    assert name == "Unsupported"
    assert message.endswith(": the memfd is sealed against writing")
    assert fix.startswith("set memory.backing of the configuration to")


@pytest.mark.parametrize("keep", [False, True])
def test_shutdown(tmp_path, sidecar, keep):
    """It has ended when engramctl does, and left its tables or not."""
    server = engramd.Sidecar(tmp_path, sidecar.config["tables"])
    before = server.client().have("demo")
    server.hang_up()
    segments = server.segments()
    result = run("--socket", str(server.socket), "shutdown",
                 *["--keep"] * keep)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("engramd has stopped")
    assert server.process.poll() == 0
    assert server.segments() == (segments if keep else [])
    assert run("--socket", str(server.socket), "shutdown").returncode == 3
    server.start()
    after = server.client().have("demo")
    assert after["adopted"] is keep
    assert after["content_id"] == before["content_id"]
    server.stop()


def test_prune_leaves_the_living_alone(ctl, sidecar, demo):
    names = sidecar.names()
    assert names
    result = ctl("prune", "--instance", sidecar.instance, "--yes")
    assert result.stdout == "nothing to remove\n"
    assert sidecar.names() == names
    assert ctl("verify", "demo").returncode == 0


def test_prune_after_a_crash(tmp_path, sidecar):
    checkpoint = pathlib.Path(sidecar.config["tables"][0]["checkpoint"])
    dead = engramd.Sidecar(tmp_path, [
        {"name": "demo", "checkpoint": str(checkpoint)}])
    run("--socket", str(dead.socket), "load", "demo")
    assert dead.segments()
    dead.kill()
    result = run("prune", "--instance", dead.instance)
    assert result.stdout.splitlines()[-1].endswith("remove with --yes")
    assert result.stdout.count("orphan  ") == len(dead.names())
    assert run("prune", "--instance", dead.instance, "--yes").returncode == 0
    assert dead.names() == []


def listed(instance, *args):
    answer = json.loads(run("prune", "--instance", instance, "--json",
                            *args).stdout)
    return [entry["name"] for entry in answer["entries"]]


def test_prune_is_exact(tmp_path, sidecar):
    """All of what no living engramd owns, and nothing of one that lives,
    however slow it is."""
    tables = sidecar.config["tables"]
    living, stopped, killed, loading, kept, ended = (
        engramd.Sidecar(tmp_path, tables) for _ in range(6))
    for server in (living, stopped, killed, kept, ended):
        server.client().have("demo")
    stopped.pause()
    killed.kill()
    kept.client().call("shutdown", keep=True)
    ended.client().call("shutdown")
    assert (kept.wait(), ended.wait()) == (0, 0)
    # what was not whole yet
    loading.kill()
    name = engramd.SHM / f"engramd.{loading.instance}.demo.3.g1.tmp"
    name.write_bytes(bytes(4096))

    owned = {server: server.names() for server in (living, stopped)}
    left = {server: server.names() for server in (killed, loading, kept)}
    assert len(left[killed]) == len(left[kept]) == 3
    for server, names in left.items():
        assert listed(server.instance) == names
        assert server.names() == names
        assert listed(server.instance, "--yes") == names
        assert server.names() == []
    for server, names in owned.items():
        assert listed(server.instance) == []
        assert listed(server.instance, "--yes") == []
        assert server.names() == names
    assert listed(ended.instance) == []
    stopped.resume()
    for server in living, stopped:
        client = server.client()
        job = client.finish(client.call("verify", table="demo")["job"])
        assert job["state"] == "done"
        server.stop()
    for server in killed, loading, kept, ended:
        server.start()  # its socket goes with it
        server.stop()


def test_config(ctl, sidecar, tmp_path):
    given = json.loads(ctl("config", "get").stdout)
    assert given == json.loads(sidecar.config_file.read_text())
    assert ctl("config", "validate", str(sidecar.config_file)).stdout == (
        f"{sidecar.config_file}: valid\n")
    relative = tmp_path / "relative.json"
    relative.write_text('{"tables": [{"name": "t", "checkpoint": "here"}]}')
    assert ctl("config", "validate", str(relative)).stdout == (
        f"{relative}: valid\n")
    wrong = tmp_path / "wrong.json"
    wrong.write_text('{"instnce": "x"}')
    result = ctl("config", "validate", str(wrong), code=1)
    assert result.stderr.startswith(f"engramctl: {wrong}: ")
    assert 'did you mean "instance"?' in result.stderr


def test_unknown_method(ctl):
    result = ctl("rpc", "pong", code=1)
    assert result.stderr == ('engramctl: there is no method "pong"\n'
                             '  fix: did you mean "ping"?\n')


def test_events(ctl, demo):
    line = ctl("events", "--count", "1", "--json").stdout
    event = json.loads(line)
    assert event["method"] == "event.table"
    assert event["params"]["name"] == "demo"


def test_not_reachable_after_shutdown(tmp_path):
    server = engramd.Sidecar(tmp_path)
    assert run("--socket", str(server.socket), "rpc",
               "shutdown").returncode == 0
    server.stop()
    result = run("--socket", str(server.socket), "health", "live")
    assert result.returncode == 3
