#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Run the C tests (tests/run.py) and the Python tests (pytest) of one build,
add both up, and end with "N passed, N failed, N skipped".

    tests/check.py --build build [--pytest PATH]... TEST...

Exits non-zero when anything failed or nothing ran, or when a test left a
process behind, which is killed: it would hold the output open.
"""
import argparse
import ctypes
import os
import pathlib
import re
import signal
import subprocess
import sys
import xml.etree.ElementTree

HERE = pathlib.Path(__file__).parent
TEST_SECONDS = 300  # of one Python test
PYTEST_SECONDS = 3000  # of all
PR_SET_CHILD_SUBREAPER = 36


def children():
    """Of this process: (pid, command line)."""
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            stat = (entry / "stat").read_text()
            command = (entry / "cmdline").read_bytes()
        except OSError:  # it is gone
            continue
        if int(stat.rpartition(")")[2].split()[1]) == os.getpid():
            yield int(entry.name), command.replace(b"\0", b" ").decode(
                errors="replace")


def end_orphans():
    """Kill what tests have left running; how many there were."""
    count = 0
    while found := list(children()):
        for pid, command in found:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            except (ProcessLookupError, ChildProcessError):
                continue
            if command:  # it had not ended
                print(f"left behind: {pid} {command}", flush=True)
                count += 1
    return count


def run_c(tests, build):
    """Counts of tests/run.py, from its last line."""
    command = [sys.executable, str(HERE / "run.py"), "--log-dir",
               str(build / "test-logs"), *tests]
    last = ""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True,
                          errors="replace") as proc:
        for line in proc.stdout:
            print(line, end="", flush=True)
            last = line
    counts = re.fullmatch(r"(\d+) passed, (\d+) failed, (\d+) skipped\n", last)
    if not counts:
        return 0, 1, 0
    passed, failed, skipped = map(int, counts.groups())
    if proc.returncode and not failed:
        failed = 1
    return passed, failed, skipped


def run_pytest(paths, build):
    """Counts of pytest, from its JUnit file."""
    report = build / "pytest.xml"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "--durations=10", "-rsfE",
               "-o", f"timeout={TEST_SECONDS}",
               "-p", "no:cacheprovider", f"--junitxml={report}", *paths]
    env = dict(os.environ, ENGRAM_BUILD=str(build),
               PYTHONDONTWRITEBYTECODE="1")
    try:
        code = subprocess.run(command, env=env, check=False,
                              timeout=PYTEST_SECONDS).returncode
    except subprocess.TimeoutExpired:
        print(f"pytest did not end within {PYTEST_SECONDS} s")
        code = 1
    try:
        suite = xml.etree.ElementTree.parse(report).getroot().find("testsuite")
    except (OSError, xml.etree.ElementTree.ParseError):
        return 0, 1, 0
    count = {key: int(suite.get(key))
             for key in ("tests", "errors", "failures", "skipped")}
    failed = count["errors"] + count["failures"]
    if code and not failed:
        failed = 1
    passed = count["tests"] - count["errors"] - count["failures"] \
        - count["skipped"]
    return max(passed, 0), failed, count["skipped"]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--pytest", action="append", default=[],
                        metavar="PATH")
    parser.add_argument("tests", nargs="*")
    args = parser.parse_args()
    build = args.build.resolve()
    build.mkdir(parents=True, exist_ok=True)

    # Those whose parents end become children of this process.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    totals = [(0, 0, 0)]
    if args.tests:
        totals.append(run_c(args.tests, build))
    if args.pytest:
        totals.append(run_pytest(args.pytest, build))
    totals.append((0, end_orphans(), 0))
    passed, failed, skipped = (sum(column) for column in zip(*totals))
    if passed + failed == 0:
        print("no test ran")
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed or passed == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
