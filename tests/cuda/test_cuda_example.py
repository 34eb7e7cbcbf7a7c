# SPDX-License-Identifier: Apache-2.0
"""The example of libengram_cuda, on a real sidecar: on a GPU it must print
what the CPU's prints; without one it must say so and what to do."""
import os
import subprocess
import sys

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../integration"))
import engramd  # noqa: E402

SHAPE = ("--layers", "1,14", "--heads", "8", "--max-ngram", "4", "--dim",
         "256", "--vocab-size", "1024", "--compressed-vocab-size", "700",
         "--shards", "3", "--engram-vocab-size", "1000")


@pytest.fixture
def sidecar(tmp_path):
    checkpoint = engramd.synth(tmp_path / "checkpoint", *SHAPE)
    made = engramd.Sidecar(tmp_path, [{"name": "demo",
                                       "checkpoint": str(checkpoint),
                                       "load": "on_demand"}])
    made.client().load("demo")
    yield made
    made.stop()


def run(name, sidecar):
    env = dict(os.environ, ENGRAMD_SOCKET=str(sidecar.socket))
    return subprocess.run([str(engramd.BUILD / "bin" / name), "demo"],
                          env=env, timeout=120, capture_output=True,
                          text=True, check=False)


def test_same_as_the_cpu(sidecar):
    ours = run("engram-cuda-example", sidecar)
    if "cudaErrorNoDevice" in ours.stderr \
            or "cudaErrorInsufficientDriver" in ours.stderr:
        assert ours.returncode == 1
        assert "check that nvidia-smi works here" in ours.stderr
        assert ours.stdout == ""
        pytest.skip("no CUDA device")
    assert ours.returncode == 0, ours.stderr
    assert "GiB in" in ours.stderr  # progress
    cpu = run("engram-example", sidecar)
    assert cpu.returncode == 0, cpu.stderr
    assert ours.stdout == cpu.stdout


def test_no_leases_stay(sidecar):
    run("engram-cuda-example", sidecar)
    client = sidecar.client()
    engramd.until(lambda: client.table("demo")["leases"] == 0,
                  "the example's lease is gone")
