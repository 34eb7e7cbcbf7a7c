# SPDX-License-Identifier: Apache-2.0
"""engram_manifest.json: a checkpoint that was changed or damaged is found, by a
load as it reads, and by verify."""
import json
import os
import shutil
import subprocess

import pytest

import engramd

CTL = engramd.BUILD / "bin" / "engramctl"
NAME = "engram_manifest.json"
SHARD = "model-00002-of-00003.safetensors"


def ctl(*words):
    return subprocess.run([CTL, *words], capture_output=True, text=True,
                          check=False, timeout=engramd.DEADLINE)


@pytest.fixture
def model(checkpoint, tmp_path):
    """A copy with its manifest."""
    directory = tmp_path / "model"
    shutil.copytree(checkpoint, directory)
    done = ctl("manifest", "write", directory)
    assert done.returncode == 0, done.stderr
    assert sorted(set(os.listdir(directory)) - set(os.listdir(checkpoint))) \
        == [NAME]
    return directory


def table_of(directory, **more):
    return {"name": "demo", "checkpoint": str(directory), "load": "on_demand",
            **more}


def load(make, directory, **more):
    sidecar = make([table_of(directory, **more)])
    client = sidecar.client()
    job = client.finish(client.call("load", table="demo")["job"])
    return client, job


def flip(path, at):
    with open(path, "rb+") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def edit(directory, change):
    path = directory / NAME
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


def test_good(make, model):
    assert ctl("manifest", "check", model).returncode == 0
    client, job = load(make, model)
    assert job["state"] == "done"
    assert client.table("demo")["loader"]["manifest"] is True
    client.finish(client.call("verify", table="demo")["job"])
    assert client.table("demo")["error"] is None


def test_none(make, checkpoint):
    client, job = load(make, checkpoint)
    assert job["state"] == "done"
    assert client.table("demo")["loader"]["manifest"] is False


@pytest.mark.parametrize("at", [-1, -9000, 700])
def test_a_byte_is_damaged(make, model, at):
    """The size is the same, and so is the header."""
    path = model / SHARD
    at = at if at > 0 else path.stat().st_size + at
    flip(path, at)
    client, job = load(make, model)
    data = job["error"]["data"]
    assert (job["state"], data["name"]) == ("failed", "ChecksumMismatch")
    assert data["path"] == str(path)
    assert f"of {path}: not the bytes that the manifest" \
        in job["error"]["message"]
    assert client.table("demo")["generation"] == 0
    done = ctl("manifest", "check", model)
    assert done.returncode == 1 and str(path) in done.stderr
    # What is known to be wanted can be written down, or not looked at.
    client.finish(client.call("load", table="other", checkpoint=str(model),
                              manifest="off")["job"])
    assert client.table("other")["state"] == "ready"
    assert ctl("manifest", "write", model).returncode == 0
    client.load("demo")


def test_other_files(make, model):
    """Before a byte of the rows is read."""
    config = json.loads((model / "config.json").read_text())
    config["text_config"]["rms_norm_eps"] = 1
    (model / "config.json").write_text(json.dumps(config))
    _, job = load(make, model)
    assert job["error"]["data"]["name"] == "SourceChanged"
    assert job["error"]["data"]["path"] == str(model / "config.json")
    assert job["bytes_done"] == 0
    assert ctl("manifest", "check", model).returncode == 1


@pytest.mark.parametrize("change, says", [
    (lambda m: m["files"].pop(0), "is not in " + NAME),
    (lambda m: m["files"][-1].update(size=5), f"bytes, and by {NAME} 5"),
    (lambda m: m["files"][-1].update(header_hash="0" * 16),
     "has another header"),
    (lambda m: m["layers"].pop(0), "layer 1 is not in " + NAME),
    (lambda m: m["layers"][1].update(record_bytes=7),
     f"and by {NAME} "),
], ids=["file_missing", "size", "header", "layer_missing", "record"])
def test_of_another_checkpoint(make, model, change, says):
    edit(model, change)
    _, job = load(make, model)
    assert job["error"]["data"]["name"] == "SourceChanged"
    assert says in job["error"]["message"]
    assert "manifest write" in job["error"]["data"]["fix"]


@pytest.mark.parametrize("change, path", [
    (lambda m: m.update(format="x"), "format"),
    (lambda m: m.update(version=2), "version"),
    (lambda m: m.pop("layers"), "layers"),
    (lambda m: m["files"][0].update(header_hash="XY"), "files[0].header_hash"),
    (lambda m: m["layers"][0].update(rows=0), "layers[0].rows"),
    (lambda m: m["layers"][0]["checksums"].append("0" * 16),
     "layers[0].checksums"),
    (lambda m: m["layers"][0].update(checksums=[7]), "layers[0].checksums"),
], ids=["format", "version", "no_layers", "hash", "rows", "count", "number"])
def test_no_manifest_at_all(make, model, change, path):
    edit(model, change)
    _, job = load(make, model)
    assert job["error"]["data"]["name"] == "CheckpointInvalid"
    assert path in job["error"]["message"]
    assert job["error"]["data"]["path"] == str(model / NAME)


def test_truncated(make, model):
    text = (model / NAME).read_text()
    (model / NAME).write_text(text[:-30])
    _, job = load(make, model)
    assert job["error"]["data"]["name"] == "CheckpointInvalid"
    assert job["error"]["data"]["path"] == str(model / NAME)


def test_required(make, checkpoint):
    _, job = load(make, checkpoint, manifest="require")
    data = job["error"]["data"]
    assert data["name"] == "NotFound"
    assert data["path"].endswith(NAME) and "manifest write" in data["fix"]


def test_verify_compares_too(make, model):
    """What was loaded is whole, but no longer what lies there."""
    client, _ = load(make, model)
    edit(model, lambda m: m["layers"][1]["checksums"].__setitem__(0, "0" * 16))
    job = client.finish(client.call("verify", table="demo")["job"])
    data = job["error"]["data"]
    assert (job["state"], data["name"]) == ("failed", "SourceChanged")
    assert "layer 14: rows from 0 on" in job["error"]["message"]
    # It is lent on.
    assert client.table("demo")["state"] == "ready"
    (model / NAME).unlink()
    assert client.finish(client.call("verify", table="demo")["job"])[
        "state"] == "done"


@pytest.mark.parametrize("layout", ["packed", "split"])
def test_layouts_have_one_manifest(make, model, layout):
    _, job = load(make, model, layout=layout)
    assert job["state"] == "done"


def test_some_layers(make, model):
    _, job = load(make, model, layers=[14])
    assert job["state"] == "done"


def test_as_a_table_describes_it(make, checkpoint, tmp_path):
    """Of the table's layers and names."""
    model = tmp_path / "model"
    shutil.copytree(checkpoint, model)
    config = tmp_path / "engramd.json"
    config.write_text(json.dumps({"tables": [table_of(model, layers=[14])]}))
    done = ctl("manifest", "write", model, "--config", config, "--table",
               "demo")
    assert done.returncode == 0, done.stderr
    manifest = json.loads((model / NAME).read_text())
    assert [x["layer_id"] for x in manifest["layers"]] == [14]
    assert load(make, model, layers=[14])[1]["state"] == "done"


def test_not_written(model, tmp_path):
    """What was there stays, and nothing else appears."""
    before = (model / NAME).read_text()
    (model / f"{NAME}.tmp").mkdir()
    done = ctl("manifest", "write", model)
    assert done.returncode == 1 and "Is a directory" in done.stderr
    assert (model / NAME).read_text() == before
    (model / f"{NAME}.tmp").rmdir()
    done = ctl("manifest", "write", tmp_path / "nothing")
    assert done.returncode == 1 and "No such file" in done.stderr


@pytest.mark.parametrize("words", [
    ["manifest", "read", "."], ["manifest", "write"],
    ["manifest", "write", ".", "--table", "x"]])
def test_command_line(words):
    assert ctl(*words).returncode == 2


@pytest.mark.parametrize("words", [
    ["--write-manifest", ".", "--json"], ["--write-manifest", ".", "--check"],
    ["--check-manifest", ".", "--inspect", "."],
    ["--check-manifest", ".", "-c", "x"]])
def test_command_line_of_engramd(words):
    done = subprocess.run([engramd.ENGRAMD, *words], capture_output=True,
                          text=True, check=False)
    assert done.returncode == 2 and "Try 'engramd --help'" in done.stderr
