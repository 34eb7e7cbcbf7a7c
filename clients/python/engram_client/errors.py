# SPDX-License-Identifier: Apache-2.0
"""What goes wrong, by its stable name.

Every failure of the sidecar or of libengram is an EngramError.  `name` is the
same in the control protocol, in C and here ("NoSpace", "NotReady"), and each
has a class of its own, so that ``except NotReady`` works; nobody has to read
the sentence.  A name that this package does not know (of a newer sidecar) is
an EngramError with that name.
"""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_classes: dict[str, type[EngramError]] = {}


class EngramError(Exception):
    """A failure with its fields.

    name       stable, "NoSpace"
    message    what happened, for people
    fix        what to do about it; "" when there is nothing to say
    path       the file or the JSON path of a parameter it is about; or ""
    errno      of a system call that failed; or 0
    needed     bytes (or units) asked for; 0 when it is not about amounts
    available  what there was of them
    job        the job that is in the way; or None
    """

    name = "Unknown"

    def __init_subclass__(cls, name: str = "", **more: Any) -> None:
        super().__init_subclass__(**more)
        cls.name = name or cls.__name__
        _classes.setdefault(cls.name, cls)

    def __init__(self, message: str, *, name: str | None = None,
                 fix: str = "", path: str = "", errno: int = 0,
                 needed: int = 0, available: int = 0,
                 job: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.name = name or type(self).name
        self.fix = fix
        self.path = path
        self.errno = errno
        self.needed = needed
        self.available = available
        self.job = job

    def __str__(self) -> str:
        return f"{self.message}; fix: {self.fix}" if self.fix else self.message

    def __reduce__(self) -> Any:
        return _rebuild, (self.name, self.message, self.fields())

    def fields(self) -> dict[str, Any]:
        """All but name and message, as keyword arguments."""
        return {"fix": self.fix, "path": self.path, "errno": self.errno,
                "needed": self.needed, "available": self.available,
                "job": self.job}


# The place is the status in C (shm/engram_status.h), from 1 on.
class InvalidArgument(EngramError, ValueError):
    """An argument is out of its range; `path` names it."""


class OutOfMemory(EngramError, MemoryError):
    """Memory could not be allocated."""


class SystemCallFailed(EngramError, name="SystemError"):
    """A system call failed; see `errno`.  (SystemError is Python's own.)"""


class NoSpace(EngramError):
    """The memory backing can not hold it: `needed`, `available`."""


class MemlockTooLow(EngramError):
    """RLIMIT_MEMLOCK is too low to pin it."""


class NotFound(EngramError, LookupError):
    """No such table, layer, job, method or file."""


class NotReady(EngramError):
    """It exists but is not whole yet; `job` is what loads it."""


class GenerationGone(EngramError):
    """That generation is no longer held."""


class Busy(EngramError):
    """Another job, instance or view holds it."""


class Draining(EngramError):
    """It is being unloaded."""


class PermissionDenied(EngramError):
    """The user of this process may not do this."""


class AlreadyExists(EngramError):
    """The name is taken."""


class TooShort(EngramError):
    """A segment or a file ends before its data."""


class VersionMismatch(EngramError):
    """Two sides of different versions."""


class Damaged(EngramError):
    """A header contradicts itself."""


class ChecksumMismatch(EngramError):
    """Bytes differ from their checksum."""


class ConfigInvalid(EngramError):
    """The configuration is wrong; `path` says where."""


class CheckpointInvalid(EngramError):
    """The checkpoint directory is wrong."""


class GeometryMismatch(EngramError):
    """Derived and stated geometry differ."""


class ReadFailed(EngramError):
    """A source could not be read."""


class SourceChanged(EngramError):
    """A source changed while it was read."""


class ShardInvalid(EngramError):
    """Some rank of that size would have no heads."""


class Canceled(EngramError):
    """Somebody cancelled the job."""


class ProtocolError(EngramError):
    """The peer broke the control protocol."""


class Disconnected(EngramError, ConnectionError):  # type: ignore[misc]
    """The sidecar is not there (any more)."""


class TimedOut(EngramError, TimeoutError):  # type: ignore[misc]
    """The deadline passed first."""


class Unsupported(EngramError, NotImplementedError):
    """Not possible with this build or host."""


class NoTokenMap(EngramError):
    """Hashing needs a token map, and the table has none."""


class InternalError(EngramError):
    """A fault of engramd itself; please report it."""


class CudaError(EngramError):
    """A CUDA call failed."""


class NcclError(EngramError):
    """An NCCL call failed."""


# By status, enum engram_status.
NAMES = ("Ok", *_classes)


def class_of(name: str) -> type[EngramError]:
    return _classes.get(name, EngramError)


def name_of(status: int) -> str:
    return NAMES[status] if 0 < status < len(NAMES) else "Unknown"


def _rebuild(name: str, message: str, fields: dict[str, Any]) -> EngramError:
    return class_of(name)(message, name=name, **fields)


def from_json(error: Mapping[str, Any]) -> EngramError:
    """An error object of the control protocol."""
    data = error.get("data")
    data = data if isinstance(data, dict) else {}
    name = str(data.get("name", "Unknown"))
    return class_of(name)(
        str(error.get("message", "")), name=name,
        fix=str(data.get("fix") or ""), path=str(data.get("path") or ""),
        errno=int(data.get("errno") or 0),
        needed=int(data.get("needed") or 0),
        available=int(data.get("available") or 0), job=data.get("job"))
