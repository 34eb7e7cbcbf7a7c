# SPDX-License-Identifier: Apache-2.0
import shutil

import pytest

import engramd
from engramd import BIG, SMALL


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """A model with two layers, a few MiB."""
    return engramd.synth(tmp_path_factory.mktemp("checkpoint") / "small",
                         *SMALL)


@pytest.fixture(scope="session")
def big_checkpoint(tmp_path_factory):
    """Large enough that a load can be caught while it runs."""
    return engramd.synth(tmp_path_factory.mktemp("checkpoint") / "big", *BIG)


@pytest.fixture(scope="session")
def seeds(tmp_path_factory):
    """Two checkpoints that differ in their rows alone."""
    root = tmp_path_factory.mktemp("seeds")
    return [engramd.synth(root / str(seed), *SMALL, "--seed", str(seed))
            for seed in (0, 1)]


@pytest.fixture
def model(tmp_path, seeds):
    """A checkpoint directory whose contents may be replaced."""
    shutil.copytree(seeds[0], tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def make(tmp_path):
    """Sidecars that are stopped, and checked, when the test ends."""
    made = []

    def factory(*args, **kwargs):
        sidecar = engramd.Sidecar(tmp_path, *args, **kwargs)
        made.append(sidecar)
        return sidecar

    yield factory
    engramd.stop_all(made)


@pytest.fixture
def sidecar(make, checkpoint):
    """One with the table "demo", configured and not loaded."""
    return make([{"name": "demo", "checkpoint": str(checkpoint),
                  "load": "on_demand"}])


@pytest.fixture
def client(sidecar):
    return sidecar.client()
