# SPDX-License-Identifier: Apache-2.0
"""A few seconds of the soak; `make soak` is the long form."""
import argparse
import os
import pathlib
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "integration")]
# pylint: disable=wrong-import-position
import engramd  # noqa: E402
import row_reader  # noqa: E402
import soak  # noqa: E402


def built(name):
    return pytest.param(name, marks=pytest.mark.skipif(
        not (engramd.BUILD / "tests" / name).exists(),
        reason=f"{name} is not built: no CUDA toolkit"))


@pytest.mark.parametrize("reader", [
    "row_reader", built("row_reader_cuda_fake"), pytest.param(
        "row_reader_cuda", marks=pytest.mark.skipif(
            not engramd.has_gpu(), reason="no GPU here"))])
def test_short_soak(reader):
    seed = int.from_bytes(os.urandom(4), "little")
    print(f"tests/soak/soak.py --seed {seed} --clients 3 --readers {reader}")
    done = soak.soak(argparse.Namespace(seconds=10, seed=seed, clients=3,
                                        readers=[reader]))
    print(done)
    assert done["rows"] > 0 and done["attaches"] > 3
    # chance may leave some of the rest out of so short a time
    assert done["refreshes"] > 3 and {1, 2} <= set(done["seeds"])


def test_rows_of_another_generation_are_counted(tmp_path):
    """The reader is not blind: told another function, it finds every row
    wrong, and says that it is a mixture."""
    checkpoint = engramd.synth(tmp_path / "model", *soak.SHAPE, "--seed", "1")
    sidecar = engramd.Sidecar(tmp_path, [
        {"name": "demo", "checkpoint": str(checkpoint)}])
    content = sidecar.client().have("demo")["content_id"]
    reader = row_reader.RowReader(sidecar, "demo", {2: content})
    engramd.until(lambda: reader.steps > 2, "rows are read")
    counts = reader.counts()
    reader.kill()
    assert counts["wrong"] > 0 and counts["mixed"] > 0, counts
    reader = row_reader.RowReader(sidecar, "demo", {1: "0" * 32})
    engramd.until(lambda: reader.unknown > 0, "the content id is unknown")
    reader.kill()
    sidecar.stop()
