# SPDX-License-Identifier: Apache-2.0
"""Run engramctl of the build under test."""
import os
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = (pathlib.Path(os.environ.get("ENGRAM_BUILD", ROOT / "build"))
         .resolve())
CTL = str(BUILD / "bin" / "engramctl")


def run(*args, env=None, timeout=60, **kwargs):
    environment = {k: v for k, v in os.environ.items()
                   if not k.startswith("ENGRAM")}
    environment.update(env or {})
    return subprocess.run([CTL, *args], env=environment, timeout=timeout,
                          capture_output=True, text=True, check=False,
                          **kwargs)
