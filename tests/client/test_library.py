# SPDX-License-Identifier: Apache-2.0
"""libengram as others see it: its symbols and its headers."""
import re
import shutil
import subprocess

import pytest

from ctl import BUILD, ROOT

LIBRARY = BUILD / "lib" / "libengram.so"
HEADERS = ["clients/c/engram.h", "shm/engram_error.h", "shm/engram_status.h",
           "kernels/engram_comm.h", "kernels/engram_geometry.h",
           "kernels/engram_kernels.h"]


def output(*args, **kwargs):
    return subprocess.run(args, check=True, capture_output=True, text=True,
                          **kwargs).stdout


def exports():
    lines = output("nm", "-D", "--defined-only", "--with-symbol-versions",
                   str(LIBRARY)).splitlines()
    return sorted(line.split()[2] for line in lines if " A " not in line)


def test_exports():
    listed = (ROOT / "clients/c/exports.txt").read_text().split()
    assert exports() == listed


def test_every_declaration_is_exported():
    declared = set()
    for header in HEADERS:
        text = re.sub(r"/\*.*?\*/", "", (ROOT / header).read_text(),
                      flags=re.S)
        declared |= set(re.findall(r"\b(engram_\w+)\(", text))
    assert declared == {name.split("@")[0] for name in exports()}


def test_soname():
    dynamic = output("readelf", "-d", str(LIBRARY))
    assert "Library soname: [libengram.so.0]" in dynamic


def test_headers_in_cxx(tmp_path):
    if not shutil.which("c++"):
        pytest.skip("no C++ compiler")
    source = tmp_path / "use.cc"
    source.write_text("#include <engram.h>\n"
                      "int main() { return engram_version() == nullptr; }\n")
    subprocess.run(["c++", "-Wall", "-Wextra", "-Werror", "-pedantic",
                    *(f"-I{ROOT / folder}"
                      for folder in ("clients/c", "shm", "kernels")),
                    "-c", str(source), "-o", str(tmp_path / "use.o")],
                   check=True)
