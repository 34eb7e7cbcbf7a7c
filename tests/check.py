#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Run the C tests (tests/run.py) and the Python tests (pytest) of one build,
add both up, and end with "N passed, N failed, N skipped".

    tests/check.py --build build [--pytest PATH]... TEST...

Exits non-zero when anything failed or nothing ran.
"""
import argparse
import os
import pathlib
import re
import subprocess
import sys
import xml.etree.ElementTree

HERE = pathlib.Path(__file__).parent


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
    command = [sys.executable, "-m", "pytest", "-q", "--durations=10", "-rs",
               "-p", "no:cacheprovider", f"--junitxml={report}", *paths]
    env = dict(os.environ, ENGRAM_BUILD=str(build),
               PYTHONDONTWRITEBYTECODE="1")
    code = subprocess.run(command, env=env, check=False).returncode
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

    totals = [(0, 0, 0)]
    if args.tests:
        totals.append(run_c(args.tests, build))
    if args.pytest:
        totals.append(run_pytest(args.pytest, build))
    passed, failed, skipped = (sum(column) for column in zip(*totals))
    if passed + failed == 0:
        print("no test ran")
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed or passed == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
