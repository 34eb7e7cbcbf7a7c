# SPDX-License-Identifier: Apache-2.0
"""The fixtures of tests/integration, and two tables whose rows are known."""
import importlib.util
import pathlib
import sys

import pytest

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "integration"), str(TESTS / "soak")]
_spec = importlib.util.spec_from_file_location(
    "integration_fixtures", TESTS / "integration" / "conftest.py")
_fixtures = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_fixtures)

make = _fixtures.make


@pytest.fixture(scope="session")
def seeded(tmp_path_factory):
    """Checkpoint directories by seed: the same but for their rows."""
    import engramd
    root = tmp_path_factory.mktemp("seeded")
    return {seed: engramd.synth(root / str(seed), *_fixtures.SMALL,
                                "--seed", str(seed)) for seed in (0, 1)}


@pytest.fixture(scope="session")
def known(seeded, tmp_path_factory):
    """Content ids by seed."""
    import engramd
    sidecar = engramd.Sidecar(
        tmp_path_factory.mktemp("known"),
        [{"name": f"seed{seed}", "checkpoint": str(path),
          "load": "on_demand"} for seed, path in seeded.items()])
    client = sidecar.client()
    ids = {seed: client.have(f"seed{seed}")["content_id"] for seed in seeded}
    assert ids[0] != ids[1]
    sidecar.stop()
    return ids
