# SPDX-License-Identifier: Apache-2.0
"""What pip installs: from the sources, without libraries, and from the wheel of
`make wheel`, with them."""
import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile

import pytest

import engram_client
from python_setting import BUILD, ROOT

SOURCE = ROOT / "clients" / "python"


def need(*modules):
    for module in modules:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"no {module} to build a wheel with")


def install(what, to):
    subprocess.run([sys.executable, "-m", "pip", "install", "-q",
                    "--no-build-isolation", "--no-index", "--no-deps",
                    "--disable-pip-version-check", "--target", to, what],
                   check=True, timeout=300, capture_output=True)


def run(installed, sidecar, **environment):
    env = {key: value for key, value in os.environ.items()
           if key != "ENGRAM_LIB_DIR"}
    code = ("import sys, engram_client\n"
            "with engram_client.Client(sys.argv[1]) as client:\n"
            "    print(client.table('demo')['state'], flush=True)\n"
            "    with client.attach('demo') as table:\n"
            "        print(table.lookup(table.hash([1, 2]), 3).shape)\n")
    return subprocess.run(
        [sys.executable, "-c", code, sidecar.socket], capture_output=True,
        text=True, check=False, timeout=60, cwd=installed,
        env={**env, "PYTHONPATH": str(installed), **environment})


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    need("pip", "setuptools", "wheel")
    libraries = [path for path in (BUILD / "lib/libengram.so",
                                   BUILD / "lib/libengram_cuda.so")
                 if path.exists()]
    out = tmp_path_factory.mktemp("wheel")
    subprocess.run(["sh", SOURCE / "make_wheel.sh", out, *libraries],
                   check=True, timeout=300,
                   env={**os.environ, "PYTHON": sys.executable})
    path, = out.glob("*.whl")
    return path


def test_contents(wheel):
    name, version, python, abi, platform = wheel.stem.split("-")
    assert (name, version) == ("engram_client", engram_client.__version__)
    assert (python, abi) == ("py3", "none") and platform.startswith("linux")
    names = zipfile.ZipFile(wheel).namelist()
    sources = {str(path.relative_to(SOURCE))
               for path in (SOURCE / "engram_client").rglob("*.py")}
    assert sources <= set(names)
    assert "engram_client/py.typed" in names
    assert "engram_client/lib/libengram.so.0" in names
    for needed in [name for name in names if "/needed/" in name]:
        assert needed.replace("needed", "licences") in names


def test_the_wheel_brings_its_libraries(wheel, sidecar, tmp_path):
    install(wheel, tmp_path)
    done = run(tmp_path, sidecar)
    assert done.stdout == "ready\n(2, 15, 64)\n", done.stderr


def test_the_sources_use_installed_libraries(sidecar, tmp_path):
    need("pip", "setuptools", "wheel")
    copy = tmp_path / "python"
    shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns(
        "build", "*.egg-info", "__pycache__"))
    install(copy, tmp_path / "site")
    done = run(tmp_path / "site", sidecar,
               LD_LIBRARY_PATH=str(BUILD / "lib"))
    assert done.stdout == "ready\n(2, 15, 64)\n", done.stderr


def test_control_works_without_libraries(sidecar, tmp_path):
    (tmp_path / "engram_client").symlink_to(SOURCE / "engram_client")
    done = run(tmp_path, sidecar, ENGRAM_LIB_DIR="/nowhere")
    assert done.stdout == "ready\n"
    assert "Unsupported" in done.stderr and "make wheel" in done.stderr
