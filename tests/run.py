#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Run test executables: exit 0 passed, 77 skipped (the last line says why),
anything else failed.  Prints a line each with its duration, the output of
those that fail, the slowest, and "N passed, N failed, N skipped" last.

    tests/run.py [--timeout S] [--jobs N] [--log-dir DIR] TEST...
"""
import argparse
import concurrent.futures
import os
import pathlib
import subprocess
import sys
import time


def run_one(test, timeout, log_dir):
    log = log_dir / (os.path.basename(test) + ".log")
    start = time.monotonic()
    with open(log, "wb") as out:
        proc = subprocess.Popen([test], stdin=subprocess.DEVNULL, stdout=out,
                                stderr=subprocess.STDOUT,
                                start_new_session=True)
        try:
            code = proc.wait(timeout)
        except subprocess.TimeoutExpired:
            # The whole session: a test's own children must not outlive it.
            os.killpg(proc.pid, 9)
            proc.wait()
            code = f"no end after {timeout} s"
    return test, code, time.monotonic() - start, log


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--timeout", type=float, default=300)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--log-dir", type=pathlib.Path,
                        default=pathlib.Path("build/test-logs"))
    parser.add_argument("tests", nargs="*")
    args = parser.parse_args()
    args.log_dir.mkdir(parents=True, exist_ok=True)

    passed = failed = skipped = 0
    times = []
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        runs = [pool.submit(run_one, t, args.timeout, args.log_dir)
                for t in args.tests]
        for run in concurrent.futures.as_completed(runs):
            test, code, seconds, log = run.result()
            name = os.path.basename(test)
            text = log.read_text(errors="replace")
            times.append((seconds, name))
            if code == 0:
                passed += 1
                print(f"ok    {seconds:7.2f} s  {name}", flush=True)
            elif code == 77:
                skipped += 1
                why = (text.strip().splitlines() or ["no reason given"])[-1]
                print(f"skip  {seconds:7.2f} s  {name}: {why}", flush=True)
            else:
                failed += 1
                print(f"FAIL  {seconds:7.2f} s  {name}: exit {code}; {log}")
                print("    " + "\n    ".join(text.splitlines()[-60:]),
                      flush=True)
    print("slowest:", ", ".join(f"{name} {seconds:.1f} s" for seconds, name
                                in sorted(times, reverse=True)[:5]))
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
