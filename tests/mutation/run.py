#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Build the kernels once for every mutant of tests/mutation/mutants.txt and
demand that a test fails; build them once without, and demand that all pass.

    tests/mutation/run.py --build DIR --cc "COMMAND AND FLAGS" --libs LIBS
            [--cc-for GLOB=FLAGS]... [--only NUMBER]... TEST...

TEST is NAME=a.o,b.o: what to link it from.  Only the sources that hold a
mutant are compiled; the rest comes from the archives.  `make check-mutation`
has the arguments.
"""
import argparse
import concurrent.futures
import fnmatch
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
USE = re.compile(r"ENGRAM_MUTATE\(\s*(\d+),")
TIMEOUT = 60


def read_list():
    mutants = {}
    for line in (HERE / "mutants.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            number, what = line.split("\t")
            if int(number) in mutants:
                sys.exit(f"mutants.txt: {number} twice")
            mutants[int(number)] = what
    return mutants


def find_uses():
    """number -> files of kernels/ that plant it"""
    uses = {}
    for path in sorted((ROOT / "kernels").rglob("*.[ch]")):
        for number in USE.findall(path.read_text()):
            uses.setdefault(int(number), set()).add(path.name)
    return uses


def includes(path, seen):
    """The names of the kernels' headers that a source includes."""
    for name in re.findall(r'#include "([^"]+)"', path.read_text()):
        name = os.path.basename(name)
        for header in (ROOT / "kernels").rglob(name):
            if name not in seen:
                seen.add(name)
                includes(header, seen)
    return seen


class Builder:
    def __init__(self, args):
        self.args = args
        self.out = pathlib.Path(args.build) / "mutation"
        shutil.rmtree(self.out, ignore_errors=True)
        self.tests = dict(test.split("=") for test in args.tests)
        self.archives = [f"{args.build}/lib/libengram_kernels.a",
                         f"{args.build}/lib/libengram_shm.a"]
        self.sources = {path: {path.name} | includes(path, set())
                        for path in sorted((ROOT / "kernels").rglob("*.c"))
                        if "cuda" not in path.parts}

    def command(self, words):
        run = subprocess.run(words, cwd=ROOT, text=True, capture_output=True)
        if run.returncode:
            raise RuntimeError(f"{shlex.join(words)}\n{run.stderr}")

    def compile(self, source, folder, defines):
        flags = []
        for pair in self.args.cc_for:
            glob, _, more = pair.partition("=")
            if fnmatch.fnmatch(source.name, glob):
                flags = shlex.split(more)
        obj = folder / (source.name + ".o")
        self.command(shlex.split(self.args.cc) + flags + defines
                     + ["-w", "-c", "-o", str(obj), str(source)])
        return str(obj)

    def first_failure(self, folder, objects):
        """Link and run one test after the other; the first that fails."""
        for name, of_test in self.tests.items():
            program = folder / name
            self.command(shlex.split(self.args.cc) + ["-o", str(program)]
                         + of_test.split(",") + objects + self.archives
                         + shlex.split(self.args.libs))
            try:
                code = subprocess.run(
                    [program], cwd=ROOT, stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                    timeout=TIMEOUT).returncode
            except subprocess.TimeoutExpired:
                code = "no end"
            os.unlink(program)
            if code:
                return f"{name} ({code})"
        return None

    def run(self, number, files):
        """The test that noticed the mutant (0: none planted), or None."""
        folder = self.out / str(number)
        folder.mkdir(parents=True)
        defines = [f"-DENGRAM_MUTANT={number}"] if number else []
        objects = [self.compile(source, folder, defines)
                   for source, needs in self.sources.items() if files & needs]
        failure = self.first_failure(folder, objects)
        shutil.rmtree(folder)
        return failure


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True)
    parser.add_argument("--cc", required=True)
    parser.add_argument("--cc-for", action="append", default=[])
    parser.add_argument("--libs", required=True)
    parser.add_argument("--only", type=int, action="append",
                        help="only these mutants")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("tests", nargs="+")
    args = parser.parse_args()

    mutants, uses = read_list(), find_uses()
    if set(mutants) != set(uses):
        sys.exit("mutants.txt and the sources differ in "
                 f"{sorted(set(mutants) ^ set(uses))}")
    builder = Builder(args)
    passed = failed = 0

    failure = builder.run(0, set().union(*uses.values()))
    if failure:
        sys.exit(f"FAIL  the code without a mutant fails {failure}\n"
                 "0 passed, 1 failed")
    passed += 1
    print("ok    without a mutant all tests pass", flush=True)

    wanted = args.only or sorted(mutants)
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        noticed = pool.map(lambda n: builder.run(n, uses[n]), wanted)
        for number, by in zip(wanted, noticed):
            if by:
                passed += 1
                print(f"ok    {number:3d} {mutants[number]}: {by}", flush=True)
            else:
                failed += 1
                print(f"FAIL  {number:3d} {mutants[number]}: no test notices",
                      flush=True)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
