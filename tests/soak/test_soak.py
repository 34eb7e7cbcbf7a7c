# SPDX-License-Identifier: Apache-2.0
"""A few seconds of the soak; `make soak` is the long form."""
import argparse
import os
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "integration")]
import soak  # noqa: E402  pylint: disable=wrong-import-position


def test_short_soak():
    seed = int.from_bytes(os.urandom(4), "little")
    print(f"tests/soak/soak.py --seed {seed}")
    done = soak.soak(argparse.Namespace(seconds=10, seed=seed, clients=3))
    print(done)
    assert done["rows"] > 0 and done["attaches"] > 3
    # chance may leave some of the rest out of so short a time
    assert any(name.startswith(("load", "reload")) for name in done)
