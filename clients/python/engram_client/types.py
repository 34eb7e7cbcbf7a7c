# SPDX-License-Identifier: Apache-2.0
"""What the sidecar answers, for type checkers: plain dictionaries at run time,
as sidecar/PROTOCOL.md describes them.  A newer sidecar may add members."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypedDict, Union


class NodeBytes(TypedDict):
    node: int
    bytes: int


class CopyStatus(TypedDict):
    node: int
    bytes: int
    huge_bytes: int | None
    nodes: list[NodeBytes] | None
    segment: str


class LayerStatus(TypedDict):
    layer_id: int
    rows: int
    dim: int
    bytes: int
    huge_bytes: int | None
    nodes: list[NodeBytes] | None
    segment: str
    copies: list[CopyStatus] | None


class Generation(TypedDict):
    generation: int
    state: Literal["held", "current", "superseded", "unwanted", "freeing"]
    content_id: str
    checkpoint: str
    bytes: int
    leases: int
    superseded_seconds: float | None


class Published(TypedDict):
    generation: int
    content_id: str


class TableStatus(TypedDict, total=False):
    name: str
    configured: bool
    state: Literal["absent", "loading", "verifying", "ready", "draining",
                   "failed"]
    generation: int
    content_id: str | None
    checkpoint: str
    layout: str
    bytes: int
    leases: int
    writable_leases: int
    job: int | None
    error: dict[str, Any] | None
    loader: dict[str, Any] | None
    adopted: bool
    not_adopted: str | None
    locked: bool
    huge_advice: str | None
    generations: list[Generation]
    layers: list[LayerStatus]


class LayerProgress(TypedDict):
    layer_id: int
    bytes_total: int
    bytes_done: int
    rate: float
    eta_seconds: float | None


class Job(TypedDict, total=False):
    job: int
    kind: str
    table: str
    state: Literal["running", "done", "failed", "canceled"]
    phase: str | None
    bytes_total: int
    bytes_done: int
    rate: float
    eta_seconds: float | None
    layers: list[LayerProgress]
    age_seconds: float
    generation: int | None
    unchanged: bool
    error: dict[str, Any] | None
    not_adopted: str | None


class Status(TypedDict, total=False):
    instance: str
    version: str
    pid: int
    uptime_seconds: float
    boot_epoch: str
    connections: int
    stopping: bool
    memory: dict[str, Any]
    tables: list[TableStatus]
    jobs: list[Job]
    gather: dict[str, Any] | None
    metrics: dict[str, str | None] | None


class Event(TypedDict):
    method: str
    params: dict[str, Any]


# Called with a job each time it is looked at, the last time when it has ended.
# True: a bar of tqdm on a terminal, if tqdm is installed, else a line every
# five seconds on stderr.
Progress = Union[None, bool, Callable[[Job], Any]]
