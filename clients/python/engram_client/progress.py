# SPDX-License-Identifier: Apache-2.0
"""Showing how far a job is."""
from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

from .types import Job, Progress

LINE_SECONDS = 5.0


class Lines:
    """A line every five seconds: for logs, and where tqdm is not installed."""

    def __init__(self, file: TextIO | None = None) -> None:
        self._file = file
        self._due = 0.0

    def __call__(self, job: Job) -> None:
        ended = job["state"] != "running"
        if not ended and time.monotonic() < self._due:
            return
        self._due = time.monotonic() + LINE_SECONDS
        print(describe(job), file=self._file or sys.stderr, flush=True)


def describe(job: Job) -> str:
    """One line: what, how far, how fast, how long still."""
    text = f"{job['kind']} {job['table']}: "
    if job["state"] != "running":
        return text + job["state"]
    total, done = job.get("bytes_total") or 0, job.get("bytes_done") or 0
    text += str(job.get("phase") or "running")
    if total:
        text += f" {100 * done // total}% of {total / 2**30:.1f} GiB"
    if job.get("rate"):
        text += f", {job['rate'] / 2**30:.2f} GiB/s"
    eta = job.get("eta_seconds")
    if eta is not None:
        text += f", {eta:.0f} s left"
    return text


class Bar:
    """A bar of tqdm; begins anew with each phase."""

    def __init__(self, tqdm: Callable[..., Any]) -> None:
        self._tqdm = tqdm
        self._phase: str | None = None
        self._bar: Any = None

    def __call__(self, job: Job) -> None:
        ended = job["state"] != "running"
        if job.get("phase") != self._phase and not ended:
            self._end()
            self._phase = job.get("phase")
            self._bar = self._tqdm(
                total=job.get("bytes_total") or None, unit="B",
                unit_scale=True, unit_divisor=1024,
                desc=f"{job['kind']} {job['table']}, {self._phase}")
        if self._bar is not None:
            done = job.get("bytes_done") or 0
            self._bar.update(max(0, done - self._bar.n))
        if ended:
            self._end()

    def _end(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def reporter(progress: Progress) -> Callable[[Job], Any]:
    """What `progress` asks for, as a function of a job."""
    if callable(progress):
        return progress
    if not progress:
        return lambda job: None
    if sys.stderr.isatty():
        try:
            from tqdm import tqdm
        except ImportError:
            pass
        else:
            return Bar(tqdm)
    return Lines()
