# SPDX-License-Identifier: Apache-2.0
"""The control protocol as bytes and messages, without a socket: what the
blocking and the asyncio client share."""
from __future__ import annotations

import itertools
import json
import os
from collections.abc import Mapping
from typing import Any

from . import errors
from ._version import PROTOCOL, __version__
from .types import Job

DEFAULT_SOCKET = "/run/engramd/default.sock"
# Of an answer; what a client sends is limited by the sidecar.
MAX_LINE = 64 << 20
RECEIVE = 1 << 18
# Between looks at a job that is followed.
JOB_WAIT_SECONDS = 0.5

Message = dict[str, Any]


def socket_path(given: str | os.PathLike[str] | None) -> str:
    """`given`, else $ENGRAMD_SOCKET, else the default."""
    path = os.fspath(given) if given is not None else \
        os.environ.get("ENGRAMD_SOCKET") or DEFAULT_SOCKET
    # sockaddr_un has 108 bytes, and the kernel would say "invalid argument".
    if len(os.fsencode(path)) > 107:
        raise errors.InvalidArgument(
            f"the socket's path has more than 107 bytes: {path}",
            path="socket", fix="use a shorter path")
    return path


def not_there(path: str, error: OSError) -> errors.EngramError:
    """Why a connection could not be made."""
    if isinstance(error, PermissionError):
        return errors.PermissionDenied(
            f"{path}: {error.strerror}", path=path, errno=error.errno or 0,
            fix="join the group of the socket (socket.group of engramd's "
                "configuration)")
    return errors.Disconnected(
        f"engramd is not reachable at {path}: {error.strerror or error}",
        path=path, errno=error.errno or 0,
        fix="start engramd, or give its socket (ENGRAMD_SOCKET)")


def may_come_up(error: errors.EngramError) -> bool:
    """Is it worth trying to connect again?"""
    return isinstance(error, errors.Disconnected)


def gone() -> errors.EngramError:
    return errors.Disconnected("engramd closed the connection",
                               fix="see engramd's log; call again to "
                                   "connect anew")


def too_late(what: str, seconds: float | None) -> errors.EngramError:
    return errors.TimedOut(f"{what}: nothing within {seconds:g} seconds")


class Lines:
    """Bytes in, messages out."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Message]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE:
            raise errors.ProtocolError("engramd sent a line without an end")
        return [self._parse(line) for line in lines if line]

    @staticmethod
    def _parse(line: bytes) -> Message:
        try:
            message = json.loads(line)
        except ValueError as error:
            raise errors.ProtocolError(
                f"engramd sent a line that is not JSON: {error}") from error
        if not isinstance(message, dict):
            raise errors.ProtocolError("engramd sent a line that is no object")
        return message


class Requests:
    """Numbers requests, and tells answers from notifications."""

    def __init__(self) -> None:
        self._ids = itertools.count(1)

    def encode(self, method: str,
               params: Mapping[str, Any]) -> tuple[int, bytes]:
        ident = next(self._ids)
        message: Message = {"jsonrpc": "2.0", "id": ident, "method": method}
        given = {k: v for k, v in params.items() if v is not None}
        if given:
            message["params"] = given
        try:
            text = json.dumps(message, allow_nan=False,
                              separators=(",", ":"))
        except (TypeError, ValueError) as error:
            raise errors.InvalidArgument(
                f"{method}: parameters that are not JSON: {error}") from error
        return ident, text.encode() + b"\n"


def result_of(message: Message) -> Any:
    """Of an answer; raises what it says."""
    if "error" in message:
        raise errors.from_json(message["error"])
    return message.get("result")


def greeting(message: Message) -> dict[str, Any]:
    """Check the first message of a connection; its params."""
    if "error" in message:  # too many connections
        raise errors.from_json(message["error"])
    params = message.get("params")
    if message.get("method") != "hello" or not isinstance(params, dict) or \
            params.get("product") != "engramd":
        raise errors.ProtocolError(
            "what answers there is not engramd", path="socket",
            fix="give the socket of engramd's control channel")
    protocol = params.get("protocol") or {}
    major, minor = protocol.get("major"), protocol.get("minor", 0)
    if major != PROTOCOL[0] or minor < PROTOCOL[1]:
        raise errors.VersionMismatch(
            f"engramd {params.get('version')} speaks protocol "
            f"{major}.{minor}, engram-client {__version__} needs "
            f"{PROTOCOL[0]}.{PROTOCOL[1]}",
            fix="install the engram-client that came with this engramd"
            if (major or 0) > PROTOCOL[0] else
            "update engramd, or install an older engram-client")
    return params


def same_job(method: str, params: Mapping[str, Any], job: Job) -> bool:
    """Is what runs as good as what was asked for?  A reload may have read the
    checkpoint before it became what it is now; a load on terms of its own is
    not that of the configuration."""
    return job["kind"] == method != "reload" and \
        job["table"] == params["table"] and \
        all(value is None for key, value in params.items() if key != "table")


def finished(job: Job) -> Job:
    """A job that has ended: itself, or raise its error."""
    if job["state"] == "done":
        return job
    error = job.get("error")
    if error is not None:
        raise errors.from_json(error)
    raise errors.Canceled(f"the {job['kind']} of table \"{job['table']}\" was "
                          "cancelled", job=job["job"])
