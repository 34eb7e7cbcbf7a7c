# SPDX-License-Identifier: Apache-2.0
"""libengram and libengram_cuda as others see them: symbols and headers."""
import pathlib
import re
import shutil
import subprocess
import typing

import pytest

from ctl import BUILD, ROOT


class Library(typing.NamedTuple):
    name: str
    folder: str
    headers: list[str]
    needs: list[str]  # of ours

    @property
    def path(self):
        return BUILD / "lib" / f"{self.name}.so"


LIBRARIES = [
    Library("libengram", "clients/c",
            ["clients/c/engram.h", "clients/c/engram_gather.h", "shm/engram_error.h",
             "shm/engram_status.h", "kernels/engram_comm.h",
             "kernels/engram_geometry.h", "kernels/engram_kernels.h"],
            []),
    Library("libengram_cuda", "clients/cuda",
            ["clients/cuda/engram_cuda.h", "clients/cuda/engram_cuda_gather.h",
             "clients/cuda/engram_cuda_layer.h",
             "kernels/engram_cuda_kernels.h"],
            ["libengram.so.0"]),
]


@pytest.fixture(params=LIBRARIES, ids=lambda library: library.name)
def library(request):
    if not request.param.path.exists():
        assert "cuda" in request.param.name
        pytest.skip("built without CUDA")
    return request.param


def output(*args, **kwargs):
    return subprocess.run(args, check=True, capture_output=True, text=True,
                          **kwargs).stdout


def exports(library):
    lines = output("nm", "-D", "--defined-only", "--with-symbol-versions",
                   str(library.path)).splitlines()
    return sorted(line.split()[2] for line in lines if " A " not in line)


def dynamic(library, tag):
    """Values of a tag of the dynamic section."""
    text = output("readelf", "-dW", str(library.path))
    return re.findall(rf"\({tag}\).*\[(.*)\]", text)


def test_exports(library):
    listed = (ROOT / library.folder / "exports.txt").read_text().split()
    assert exports(library) == listed


def test_every_declaration_is_exported(library):
    declared = set()
    for header in library.headers:
        text = re.sub(r"/\*.*?\*/", "", (ROOT / header).read_text(),
                      flags=re.S)
        declared |= set(re.findall(r"\b(engram_\w+)\(", text))
    assert declared == {name.split("@")[0] for name in exports(library)}


def test_one_version_node(library):
    node = library.name.removeprefix("lib").upper() + "_0"
    assert {name.split("@@")[1] for name in exports(library)} == {node}


def test_soname(library):
    assert dynamic(library, "SONAME") == [f"{library.name}.so.0"]


def test_needs(library):
    """Of CUDA nothing: its runtime is inside, NCCL and cuBLASLt are found at
    run time."""
    needed = dynamic(library, "NEEDED")
    assert [name for name in needed if "engram" in name] == library.needs
    assert not [name for name in needed
                if re.match(r"libcu|libnccl|libnv", name)]
    if library.needs:  # and finds ours beside itself, installed too
        assert dynamic(library, "(?:RUNPATH|RPATH)") == ["$ORIGIN"]


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda lib: lib.name)
def test_headers_in_cxx(library, tmp_path):
    """Without CUDA's headers, too."""
    if not shutil.which("c++"):
        pytest.skip("no C++ compiler")
    folders = {str(ROOT / pathlib.Path(header).parent)
               for lib in LIBRARIES for header in lib.headers}
    source = tmp_path / "use.cc"
    source.write_text("".join(f"#include <{pathlib.Path(header).name}>\n"
                              for header in library.headers)
                      + "int main() { return ENGRAM_OK; }\n")
    subprocess.run(["c++", "-Wall", "-Wextra", "-Werror", "-pedantic",
                    *(f"-I{folder}" for folder in sorted(folders)),
                    "-c", str(source), "-o", str(tmp_path / "use.o")],
                   check=True)
