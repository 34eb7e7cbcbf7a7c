# SPDX-License-Identifier: Apache-2.0
"""What the tests of the Python client share: where things are, and the table."""
import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / os.environ.get("ENGRAM_BUILD", "build")
sys.path[:0] = [str(ROOT / "clients" / "python"), *(
    str(ROOT / "tests" / folder)
    for folder in ("integration", "kernels", "bench", "synth"))]
os.environ.setdefault("ENGRAM_LIB_DIR", str(BUILD / "lib"))

import engramd  # noqa: E402 pylint: disable=wrong-import-position

LAYERS, HEADS, MAX_NGRAM, DIM, VOCAB = (3, 9), 5, 4, 64, 500
COLS = HEADS * (MAX_NGRAM - 1)
SHAPE = ("--layers", "3,9", "--heads", str(HEADS), "--max-ngram",
         str(MAX_NGRAM), "--dim", str(DIM), "--vocab-size", str(VOCAB),
         "--compressed-vocab-size", "300")


def start(directory, tables, **config):
    return engramd.Sidecar(directory, [
        {"name": name, "checkpoint": str(path), "load": "on_demand"}
        for name, path in tables.items()], gather={"threads": 2}, **config)
