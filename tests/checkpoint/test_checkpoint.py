# SPDX-License-Identifier: Apache-2.0
"""Each folder of tests/bad/checkpoint is a checkpoint that must be refused:
make.py makes a good one bad (see builder.py), `expected` is the error with all
of its fields.

After a change of wording, ENGRAM_UPDATE=1 writes `expected` afresh; read the
difference before committing it.
"""
import importlib.util
import os
import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "integration")]
import builder  # noqa: E402  (the path comes first)
import engramd  # noqa: E402

BUILD = pathlib.Path(os.environ.get("ENGRAM_BUILD", "build")).resolve()
CASES = sorted(p for p in (HERE.parent / "bad/checkpoint").iterdir()
               if (p / "make.py").exists())


def made(case, directory):
    spec = importlib.util.spec_from_file_location(case.name, case / "make.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    checkpoint = builder.Checkpoint()
    module.make(checkpoint)
    checkpoint.write(directory)
    return module


def probe(tmp_path, *words):
    return subprocess.run([BUILD / "tests/checkpoint_probe", "checkpoint",
                           *words], cwd=tmp_path, capture_output=True,
                          check=False, timeout=60)


def test_there_are_cases():
    assert len(CASES) >= 50


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_refused(case, tmp_path):
    module = made(case, tmp_path / "checkpoint")
    run = probe(tmp_path, *getattr(module, "WORDS", ()))
    expected = case / "expected"
    if os.environ.get("ENGRAM_UPDATE"):
        expected.write_bytes(run.stdout)
    assert run.stderr == b""
    assert run.stdout.decode() == expected.read_text()
    assert run.returncode == 1


@pytest.fixture(scope="module")
def sidecar(tmp_path_factory):
    sidecar = engramd.Sidecar(tmp_path_factory.mktemp("sidecar"))
    yield sidecar
    sidecar.stop()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_sidecar_still_answers(case, tmp_path, sidecar):
    """The same through a load: the job fails with that status, and the
    sidecar answers a ping."""
    module = made(case, tmp_path / "checkpoint")
    more = {"token_map": w for w in getattr(module, "WORDS", ())}
    client = sidecar.client()
    job = client.call("load", table="bad",
                      checkpoint=str(tmp_path / "checkpoint"), **more)["job"]
    ended = client.finish(job)
    assert ended["state"] == "failed"
    assert ended["error"]["data"]["name"] == (
        case / "expected").read_text().split("\n")[0].split(": ")[1]
    assert client.call("ping") == {}
    client.close()


GOOD = {
    "as it is": lambda c: None,
    "keys at the top level": lambda c: c.__setattr__("outer", c.config),
    "engram_pad_id": lambda c: c.config.__setitem__(
        "engram_pad_id", c.config.pop("engram_pad_token_id")),
    "single file": lambda c: c.single_file(),
    "several files, no index": lambda c: c.files.__setitem__(
        "model.safetensors.index.json", None),
    "bare token map": lambda c: c.__setattr__(
        "token_map", c.token_map["token_map"]),
    "unknown dtype of another tensor": lambda c: c.add(
        c.first, "x", "F4_E2M1", [3], 2),
    "U8": lambda c: [c.tensor(n).__setitem__("dtype", "U8") for layer in
                     builder.ROWS for n in (c.weight(layer), c.scale(layer))],
    "an empty tensor": lambda c: c.add(c.first, "nothing", "U8", [0, 5]),
}


@pytest.mark.parametrize("name", GOOD)
def test_accepted(name, tmp_path):
    checkpoint = builder.Checkpoint()
    GOOD[name](checkpoint)
    checkpoint.write(tmp_path / "checkpoint")
    run = probe(tmp_path)
    assert run.returncode == 0, run.stdout.decode()
    lines = run.stdout.decode().splitlines()
    assert lines[:2] == ["pad: 2", "token map: 16"]
    assert [line for line in lines if line.startswith("layer")] == [
        "layer 1: 60 rows", "layer 14: 120 rows"]


def test_short_token_map(tmp_path):
    """Embeddings are often padded to more rows than there are tokens."""
    checkpoint = builder.Checkpoint()
    checkpoint.token_map["token_map"] = list(range(10))
    checkpoint.write(tmp_path / "checkpoint")
    run = probe(tmp_path)
    assert run.stdout.decode().startswith("pad: 2\ntoken map: 10\n")


@pytest.mark.parametrize("words, want", [
    ((), "pad: 2\ntoken map: 16\n"),
    (("tokenizer.json",), "pad: 1\ntoken map: 11\n")])
def test_order_of_token_maps(words, want, tmp_path):
    """engram_token_map.json comes before tokenizer.json, what is named
    before both; the pad token goes through the map."""
    checkpoint = builder.Checkpoint()
    checkpoint.use_tokenizer()
    del checkpoint.files["engram_token_map.json"]
    checkpoint.tokenizer["model"]["vocab"] = {
        token: i for i, token in enumerate("aAbcdefghij")}
    checkpoint.config["engram_pad_token_id"] = 2
    checkpoint.write(tmp_path / "checkpoint")
    run = probe(tmp_path, *words)
    assert run.stdout.decode().startswith(want)


def test_tokenizer(tmp_path):
    """It alone makes a map."""
    checkpoint = builder.Checkpoint()
    checkpoint.use_tokenizer()
    checkpoint.write(tmp_path / "checkpoint")
    run = probe(tmp_path)
    assert run.returncode == 0, run.stdout.decode()
    assert run.stdout.decode().startswith("pad: 2\ntoken map: 10\n")


def test_linked_files(tmp_path):
    """As a Hugging Face cache has them: names that are links to blobs."""
    builder.Checkpoint().write(tmp_path / "blobs")
    (tmp_path / "checkpoint").mkdir()
    for file in (tmp_path / "blobs").iterdir():
        (tmp_path / "checkpoint" / file.name).symlink_to(
            f"../blobs/{file.name}")
    assert probe(tmp_path).returncode == 0


def test_no_token_map(tmp_path):
    checkpoint = builder.Checkpoint()
    checkpoint.files["engram_token_map.json"] = None
    checkpoint.write(tmp_path / "checkpoint")
    run = probe(tmp_path)
    assert run.returncode == 0
    assert run.stdout.decode().startswith("pad: -1\ntoken map: 0\n")


def test_not_there(tmp_path):
    run = probe(tmp_path)
    assert run.returncode == 1
    assert run.stdout.decode() == (
        "status: NotFound\npath: checkpoint\n"
        "message: checkpoint checkpoint: No such file or directory\n"
        "fix: name the directory that holds config.json and the safetensors "
        "files\n")
