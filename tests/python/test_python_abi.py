# SPDX-License-Identifier: Apache-2.0
"""The package and the C headers say the same."""
import ctypes
import os
import re
import shutil
import subprocess
import sys

import pytest

from python_setting import BUILD, ROOT
from engram_client import __version__, _abi, errors

FOLDERS = ("shm", "kernels", "clients/c", "clients/cuda")
CONSTANTS = {
    "ENGRAM_CUDA_BACKGROUND": _abi.BACKGROUND,
    "ENGRAM_CUDA_FOREGROUND": _abi.FOREGROUND,
    "ENGRAM_CUDA_REGISTERED": _abi.REGISTERED,
    "ENGRAM_CUDA_DEVICE": _abi.DEVICE, "ENGRAM_CUDA_HOST": _abi.HOST,
    **{f"ENGRAM_PATH_{name.upper()}": value
       for name, value in _abi.PATHS.items()}}


def expected(structures):
    for name, structure in structures.items():
        yield f"engram_{name} {ctypes.sizeof(structure)}"
        for field, *_ in structure._fields_:
            place = getattr(structure, field)
            yield f"engram_{name}.{field} {place.offset} {place.size}"


def printing(structures):
    for name, structure in structures.items():
        yield f'printf("engram_{name} %zu\\n", sizeof(struct engram_{name}));'
        for field, *_ in structure._fields_:
            yield (f'printf("engram_{name}.{field} %zu %zu\\n", '
                   f"offsetof(struct engram_{name}, {field}), "
                   f"sizeof(((struct engram_{name} *)0)->{field}));")


def run_c(tmp_path, headers, lines):
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if not compiler:
        pytest.skip("no C compiler to ask for the layout")
    source, program = tmp_path / "layout.c", tmp_path / "layout"
    source.write_text("\n".join([
        "#include <stddef.h>", "#include <stdio.h>",
        *(f'#include "{header}"' for header in headers),
        "int main(void)", "{", *lines, "return 0;", "}", ""]))
    subprocess.run([compiler, *(f"-I{ROOT / f}" for f in FOLDERS),
                    "-o", program, source], check=True)
    return subprocess.run([program], check=True, capture_output=True,
                          text=True).stdout.splitlines()


def test_structures(tmp_path):
    both = {**_abi.STRUCTURES, **_abi.CUDA_STRUCTURES}
    found = run_c(tmp_path, ["engram_gather.h", "engram_cuda_gather.h"],
                  printing(both))
    assert found == list(expected(both))


def leaves(kind):
    """The numbers that a structure is made of, and how ctypes holds them."""
    if issubclass(kind, ctypes.Array):
        return [kind._type_] * kind._length_
    if issubclass(kind, ctypes.Structure):
        return [leaf for _, field in kind._fields_ for leaf in leaves(field)]
    return [kind]


@pytest.mark.parametrize("structure", [
    _abi.HashBatch, _abi.GateArgs, _abi.CudaLookupParams],
    ids=lambda structure: structure.__name__)
def test_packed_is_what_ctypes_makes(structure):
    """Each number at its place, every one another."""
    kinds = leaves(structure)
    values = [n + 1.5 if kind is ctypes.c_float else n + 1
              for n, kind in enumerate(kinds)]
    made = structure.from_buffer_copy(_abi.packer(structure).pack(*values))
    found = []

    def read(value):
        if isinstance(value, ctypes.Structure):
            for field, *_ in value._fields_:
                read(getattr(value, field))
        elif isinstance(value, ctypes.Array):
            found.extend(value)
        else:
            found.append(value)

    read(made)
    assert found == values


def test_constants(tmp_path):
    found = run_c(tmp_path, ["engram_cuda_gather.h"], [
        f'printf("%d\\n", (int){name});' for name in CONSTANTS])
    assert found == [str(value) for value in CONSTANTS.values()]


def test_errors_are_those_of_c(tmp_path):
    found = run_c(tmp_path, ["engram_status.h", "../shm/status.c"], [
        "for (int i = 0; i < ENGRAM_STATUS_COUNT; i++)",
        'printf("%s\\n", engram_status_name(i));'])
    assert tuple(found) == errors.NAMES


def test_functions_are_declared():
    """Each is in a public header, with as many arguments."""
    text = "\n".join(path.read_text() for folder in FOLDERS
                     for path in (ROOT / folder).glob("*.h"))
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    for name, (_, arguments) in _abi.FUNCTIONS.items():
        found = re.search(rf"\b{name}\s*\(([^;]*?)\);", text)
        assert found, name
        given = found[1].strip()
        count = 0 if given == "void" else given.count(",") + 1
        assert count == len(arguments), name


def test_one_version():
    made = (ROOT / "Makefile").read_text()
    project = (ROOT / "clients/python/pyproject.toml").read_text()
    assert re.search(r"^VERSION := (.*)$", made, re.M)[1] == __version__
    assert re.search(r'^version = "(.*)"$', project, re.M)[1] == __version__


@pytest.mark.parametrize("version,fits", [
    ("0.1.0", True), ("0.1.9", True), ("0.2.0", False), ("1.1.0", False)])
@pytest.mark.parametrize("name", ["engram", "cuda"])
def test_library_of_another_release(tmp_path, name, version, fits):
    """The package refuses a library that is not of its release."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if not compiler:
        pytest.skip("no C compiler to make a library with")
    versions = {"engram": __version__, "cuda": __version__, name: version}
    for stem, function in (("engram", "engram"), ("cuda", "engram_cuda")):
        source = tmp_path / f"{stem}.c"
        source.write_text(f'const char *{function}_version(void) {{ return '
                          f'"{versions[stem]}"; }}\n')
        subprocess.run([compiler, "-shared", "-fPIC", "-o",
                        tmp_path / f"lib{function}.so.0", source], check=True)
    done = load(tmp_path, name)
    assert (done.returncode == 0) == fits, done
    if not fits:
        file = "libengram" + ("_cuda" if name == "cuda" else "")
        assert f"VersionMismatch: {tmp_path}/{file}.so.0 is {version}, " \
            f"engram-client is {__version__}; fix: install both" in done.stderr


def test_library_that_is_not_there(tmp_path):
    done = load(tmp_path)
    assert "Unsupported: " in done.stderr
    assert "fix: install engramd" in done.stderr


def load(directory, name="engram"):
    return subprocess.run(
        [sys.executable, "-c", "from engram_client import _library;"
         f"_library.{name}()"], capture_output=True, text=True, check=False,
        env={**os.environ, "ENGRAM_LIB_DIR": str(directory),
             "PYTHONPATH": str(ROOT / "clients/python")}, timeout=60)


def test_library_of_this_build():
    assert load(BUILD / "lib").returncode == 0
