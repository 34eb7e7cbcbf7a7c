# SPDX-License-Identifier: Apache-2.0
"""libengram and libengram_cuda, found and loaded when they are first needed.

They are looked for in $ENGRAM_LIB_DIR, then beside this file (`make wheel` puts
them there), then where the dynamic linker looks.
"""
from __future__ import annotations

import ctypes
import os
import pathlib
import threading
from typing import Any

from . import errors
from ._abi import FUNCTIONS, Error
from ._version import __version__

SOVERSION = 0
BUNDLED = pathlib.Path(__file__).with_name("lib")

_lock = threading.RLock()
_loaded: dict[str, Library] = {}


class Library:
    """One shared library, its functions as attributes, without "engram_".

    `check` turns a status into its exception.
    """

    def __init__(self, path: str, so: ctypes.CDLL) -> None:
        self.path = path
        self._so = so

    def __getattr__(self, name: str) -> Any:
        result, arguments = FUNCTIONS["engram_" + name]
        try:
            function = getattr(self._so, "engram_" + name)
        except AttributeError:
            raise errors.Unsupported(
                f"{self.path} has no engram_{name}",
                fix="install the libraries and the engram-client of one "
                    "release") from None
        function.restype = result
        function.argtypes = arguments
        setattr(self, name, function)
        return function


def check(status: int) -> None:
    """Raise the calling thread's last error if the status is one."""
    if status:
        raise last_error(status)


def last_error(status: int) -> errors.EngramError:
    return exception(status, Error.from_address(engram().last_error()))


def exception(status: int, error: Error) -> errors.EngramError:
    """What C has written down, as an exception."""
    name = errors.name_of(error.status or status)
    return errors.class_of(name)(
        error.message.decode(errors="replace"), name=name,
        fix=error.fix.decode(errors="replace"),
        path=error.path.decode(errors="replace"), errno=error.sys_errno,
        needed=error.needed, available=error.available)


def _candidates(stem: str) -> list[str]:
    file = f"{stem}.so.{SOVERSION}"
    given = os.environ.get("ENGRAM_LIB_DIR")
    if given:
        return [os.path.join(given, file)]
    bundled = BUNDLED / file
    return [*([str(bundled)] if bundled.exists() else []), file]


def _dlopen(stem: str, missing: str) -> tuple[str, ctypes.CDLL]:
    reasons = []
    for path in _candidates(stem):
        if os.path.dirname(path) == str(BUNDLED):
            # what it needs: the linker finds it by its name, once loaded
            for beside in sorted(BUNDLED.glob("needed/*")):
                ctypes.CDLL(str(beside))
        try:
            return path, ctypes.CDLL(path)
        except OSError as error:
            reasons.append(str(error))
    raise errors.Unsupported("; ".join(reasons), path=stem, fix=missing)


def _release(version: str) -> list[str]:
    """What must be equal: major and, before 1.0, minor."""
    parts = version.split(".")
    return parts[:2] if parts[0] == "0" else parts[:1]


def check_version(what: str, version: str) -> None:
    if _release(version) != _release(__version__):
        raise errors.VersionMismatch(
            f"{what} is {version}, engram-client is {__version__}",
            fix="install both from one release, or name the directory of the "
                "right libraries in ENGRAM_LIB_DIR")


def engram() -> Library:
    """libengram."""
    library = _loaded.get("engram")
    if library is not None:
        return library
    with _lock:
        if "engram" not in _loaded:
            path, so = _dlopen(
                "libengram", "install engramd (make install), or a wheel that "
                "holds it (make wheel), or name its directory in "
                "ENGRAM_LIB_DIR")
            library = Library(path, so)
            check_version(path, library.version().decode())
            _loaded["engram"] = library
        return _loaded["engram"]


def cuda() -> Library:
    """libengram_cuda; libengram is loaded before it."""
    library = _loaded.get("cuda")
    if library is not None:
        return library
    engram()  # that one is then what it is linked with
    with _lock:
        if "cuda" not in _loaded:
            path, so = _dlopen(
                "libengram_cuda", "build engramd where nvcc is (make), or "
                "name the directory of libengram_cuda in ENGRAM_LIB_DIR")
            library = Library(path, so)
            check_version(path, library.cuda_version().decode())
            _loaded["cuda"] = library
        return _loaded["cuda"]
