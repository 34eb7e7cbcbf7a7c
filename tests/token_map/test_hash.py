# SPDX-License-Identifier: Apache-2.0
"""From a directory as downloaded to row numbers: a real tokenizer.json beside
synthetic tables, and the ids of ten thousand random sequences, against the
`tokenizers` library for the map and NumPy for the rest."""
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "integration")]
import engramd  # noqa: E402
from test_token_map import BUILD, library, theirs  # noqa: E402

LAYERS, HEADS, MAX_NGRAM, VOCAB = (1, 14), 8, 4, 2000
COMPRESSED, TOKENS, PAD = 99092, 129280, 2
SEQUENCES, SEED = 10000, 19


def primes_after(start):
    while True:
        start += 1
        if all(start % d for d in range(2, int(start ** 0.5) + 1)):
            yield start


def expected(token_map, lengths, tokens):
    """int32 [tokens, layers, columns]."""
    source = token_map[tokens].astype(np.int64)
    pad = int(token_map[PAD])
    position = np.concatenate([np.arange(n) for n in lengths])
    prime = primes_after(VOCAB - 1)  # one after the other: none twice
    layers = []
    for layer in LAYERS:
        bound = max(1, (2**63 - 1) // COMPRESSED // 2)
        multipliers = 2 * np.random.default_rng(10007 * layer).integers(
            0, bound, MAX_NGRAM, np.int64) + 1
        rolling, offset, columns = np.zeros(len(tokens), np.int64), 0, []
        for back, multiplier in enumerate(multipliers):
            before = np.where(position >= back, np.roll(source, back), pad)
            rolling ^= before * multiplier
            for _ in range(HEADS if back else 0):
                rows = next(prime)
                columns.append(rolling % rows + offset)
                offset += rows
        layers.append(np.stack(columns, axis=1))
    return np.stack(layers, axis=1).astype(np.int32)


@pytest.fixture(scope="module", name="tokenizer")
def tokenizer_file():
    return pathlib.Path(library("--deepseek").decode().strip())


@pytest.fixture(scope="module", name="sidecar")
def running(tmp_path_factory, tokenizer):
    directory = tmp_path_factory.mktemp("hash")
    model = engramd.synth(
        directory / "model", "--no-token-map", "--dim", "32",
        "--layers", ",".join(map(str, LAYERS)), "--heads", str(HEADS),
        "--max-ngram", str(MAX_NGRAM), "--engram-vocab-size", str(VOCAB),
        "--vocab-size", str(TOKENS), "--pad-id", str(PAD),
        "--compressed-vocab-size", str(COMPRESSED))
    shutil.copy(tokenizer, model / "tokenizer.json")
    sidecar = engramd.Sidecar(directory, [
        {"name": "demo", "checkpoint": str(model), "load": "on_demand"}])
    yield sidecar
    sidecar.stop()


def test_ten_thousand_sequences(sidecar, tokenizer):
    sidecar.client().load("demo")
    random = np.random.default_rng(SEED)
    lengths = random.integers(1, 12, SEQUENCES, np.int32)
    tokens = random.integers(0, TOKENS, int(lengths.sum()), np.int32)
    run = subprocess.run(
        [BUILD / "tests/hash_probe", sidecar.socket, "demo", str(SEQUENCES),
         str(len(tokens))], input=lengths.tobytes() + tokens.tobytes(),
        capture_output=True, check=False, timeout=engramd.DEADLINE)
    assert run.returncode == 0, run.stderr.decode()
    token_map = np.array(theirs(tokenizer)["token_map"], np.int32)
    want = expected(token_map, lengths, tokens)
    got = np.frombuffer(run.stdout, np.int32).reshape(want.shape)
    assert (got == want).all(), np.argwhere(got != want)[:5]
