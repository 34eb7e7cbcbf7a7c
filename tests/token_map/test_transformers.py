# SPDX-License-Identifier: Apache-2.0
"""Row numbers against the models of the `transformers` library, where there is
one that has them: set ENGRAM_TRANSFORMERS_PYTHON to the Python of it."""
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "integration")]
import engramd  # noqa: E402
import kinds  # noqa: E402
from test_token_map import library, ours  # noqa: E402
from tokenizer_file import added, write  # noqa: E402

PYTHON = os.environ.get("ENGRAM_TRANSFORMERS_PYTHON", sys.executable)
CTL = engramd.BUILD / "bin" / "engramctl"


def transformers(*words, **wanted):
    """Skips, with the reason, where it has no such thing."""
    env = {**os.environ, "HF_HUB_OFFLINE": "1"}
    run = subprocess.run(
        [PYTHON, HERE / "transformers_reference.py", *words], env=env,
        input=json.dumps(wanted), capture_output=True, text=True, check=False,
        timeout=300)
    if run.returncode == 77:
        pytest.skip(run.stdout.strip())
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1])


def hashed(sidecar, text):
    run = subprocess.run(
        [CTL, "--socket", sidecar.socket, "--json", "hash", "demo",
         "--tokens", ",".join(map(str, text))], capture_output=True, text=True,
        check=True, timeout=engramd.DEADLINE)
    return [layer["ids"] for layer in json.loads(run.stdout)["layers"]]


def texts(vocab, special=(), count=30, seed=1):
    rng = random.Random(seed)
    return [[rng.choice(special) if special and rng.random() < 0.2
             else rng.randrange(vocab) for _ in range(rng.randint(1, 12))]
            for _ in range(count)]


def test_engram(tmp_path):
    """Layout and hash of the released model, of fewer rows."""
    tokenizer = library("--deepseek").decode().strip()
    model = engramd.synth(
        tmp_path / "model", "--no-token-map", "--dim", "32", "--layers",
        "1,14", "--heads", "8", "--max-ngram", "4", "--engram-vocab-size",
        "2000", "--vocab-size", "129280", "--pad-id", "2",
        "--compressed-vocab-size", "99092")
    shutil.copy(tokenizer, model / "tokenizer.json")
    config = json.loads((model / "config.json").read_text())
    some = texts(129280, (2, 0, 1))
    want = transformers("engram", tokenizer,
                        config=config.get("text_config", config), texts=some)
    run = subprocess.run([engramd.BUILD / "bin/engramd", "--inspect", model,
                          "--json"], capture_output=True, check=True)
    layers = json.loads(run.stdout)["layers"]
    for key in "primes", "multipliers":
        assert [layer[key] for layer in layers] == want[key]
    sidecar = engramd.Sidecar(tmp_path, [
        {"name": "demo", "checkpoint": str(model), "load": "on_demand"}])
    try:
        sidecar.client().load("demo")
        for text, ids in zip(some, want["ids"]):
            assert hashed(sidecar, text) == [
                [token[layer] for token in ids] for layer in range(2)]
    finally:
        sidecar.stop()


def ple_config(hash_):
    return {"ngram_size": hash_["max_ngram"],
            "heads_per_ngram": hash_["heads"],
            "vocab_size": hash_["vocab_size"], "seed": 1234,
            "ngram_vocab_size_base": hash_["prime_start"],
            "make_ngram_vocab_size_divisible_by": 128,
            "eos_token_id": hash_["pad_id"]}


def ple_example():
    file = engramd.ROOT / "config/examples/qwen-ple.json"
    table, = json.loads(file.read_text())["tables"]
    return table


def test_ple_example():
    """The example's numbers are those of the model."""
    hash_ = ple_example()["hash"]
    want = transformers("ple", config=ple_config(hash_), texts=[])
    assert want["multipliers"] == hash_["multipliers"][0]
    assert want["moduli"] == kinds.Geometry(hash_).moduli[1]


def test_ple(tmp_path):
    """Texts with ends in them, of the example with fewer rows."""
    table = {**ple_example(), "name": "demo", "load": "on_demand"}
    hash_ = table["hash"]
    hash_["prime_start"] = 50
    table["checkpoint"] = str(kinds.Model(table).write(tmp_path / "model"))
    some = texts(hash_["vocab_size"], hash_["cut_tokens"])
    want = transformers("ple", config=ple_config(hash_), texts=some)
    sidecar = engramd.Sidecar(tmp_path, [table])
    try:
        sidecar.client().load("demo")
        for text, ids in zip(some, want["ids"]):
            assert hashed(sidecar, text) == [ids]
    finally:
        sidecar.stop()


def test_added_tokens(tmp_path):
    """What a loader adds is refused here, and there once it is saved."""
    file = write(tmp_path / "tokenizer.json", ["a", "b"], [added(2, "<pad>")])
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<y>",
        "added_tokens_decoder": {"5": {"content": "<x>"}},
        "extra_special_tokens": {"image_token": "<z>"}}))
    count = transformers("added", tmp_path)
    assert count == 6
    with pytest.raises(subprocess.CalledProcessError):
        ours(file)
    saved = ours(tmp_path / "saved/tokenizer.json")
    assert saved == {"compressed": count, "token_map": list(range(count))}
