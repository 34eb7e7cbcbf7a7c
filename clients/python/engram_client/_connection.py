# SPDX-License-Identifier: Apache-2.0
"""A blocking connection to engramd."""
from __future__ import annotations

import collections
import math
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any

from . import _rpc, errors


class Connection:
    """Connected when it is made.  Any thread may call; calls take turns.

    A connection that engramd has closed is made anew before a call; a call
    under which it is closed raises Disconnected, and is never sent twice.
    """

    def __init__(self, path: str, name: str, connect_wait: float | None,
                 timeout: float | None) -> None:
        self.path = path
        self.name = name
        self.timeout = timeout
        self.hello: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._closed = False
        self._connect(connect_wait)

    def _connect(self, wait: float | None) -> None:
        end = math.inf if wait is None else time.monotonic() + wait
        pause = 0.02
        while True:
            try:
                return self._connect_once()
            except errors.EngramError as error:
                left = end - time.monotonic()
                if left <= 0 or not _rpc.may_come_up(error):
                    raise
                time.sleep(min(pause, left))
                pause = min(2 * pause, 1.0)

    def _connect_once(self) -> None:
        self._lines = _rpc.Lines()
        self._requests = _rpc.Requests()
        self._messages: collections.deque[_rpc.Message] = collections.deque()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(self.timeout)
        try:
            self._socket.connect(self.path)
        except OSError as error:
            self._drop()
            raise _rpc.not_there(self.path, error) from error
        try:
            self.hello = _rpc.greeting(self._message(self._end(self.timeout)))
            if self.name:
                self._answer("client.name", {"name": self.name}, self.timeout)
        except BaseException:
            self._drop()
            raise

    def _drop(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    @staticmethod
    def _end(timeout: float | None) -> float:
        return math.inf if timeout is None else time.monotonic() + timeout

    def _receive(self, end: float) -> None:
        """More messages; TimedOut leaves the connection as it is."""
        assert self._socket is not None
        left = None if end == math.inf else end - time.monotonic()
        if left is not None and left <= 0:
            raise errors.TimedOut("engramd did not answer in time")
        self._socket.settimeout(left)
        try:
            data = self._socket.recv(_rpc.RECEIVE)
        except TimeoutError as error:
            raise errors.TimedOut("engramd did not answer in time") from error
        except OSError as error:
            raise _rpc.gone() from error
        if not data:
            raise _rpc.gone()
        self._messages.extend(self._lines.feed(data))

    def _message(self, end: float) -> _rpc.Message:
        while not self._messages:
            self._receive(end)
        return self._messages.popleft()

    def _answer(self, method: str, params: Mapping[str, Any],
                timeout: float | None) -> Any:
        ident, data = self._requests.encode(method, params)
        assert self._socket is not None
        self._socket.settimeout(timeout)
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise _rpc.gone() from error
        end = self._end(timeout)
        while True:
            message = self._message(end)
            # an error with a null id is about the connection, which ends
            if "error" in message and message.get("id") is None:
                raise errors.from_json(message["error"])
            if message.get("id") == ident:
                return _rpc.result_of(message)

    def call(self, method: str, params: Mapping[str, Any],
             timeout: float | None = None) -> Any:
        """The result of a method, or the error that it gives."""
        with self._lock:
            self._ready()
            try:
                return self._answer(method, params, timeout or self.timeout)
            except errors.Disconnected:
                self._drop()
                raise
            except (errors.TimedOut, errors.ProtocolError):
                # its answer may come yet, and must not be taken for another's
                self._drop()
                raise

    def _ready(self) -> None:
        if self._closed:
            raise errors.InvalidArgument("this client is closed")
        if self._socket is not None and not self._messages and self._at_end():
            self._drop()
        if self._socket is None:
            self._connect(0.0)

    def _at_end(self) -> bool:
        """Has engramd closed it?  What else has come stays to be read."""
        assert self._socket is not None
        self._socket.settimeout(0)
        try:
            return not self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def next_event(self, timeout: float | None) -> _rpc.Message | None:
        """The next notification; None when there is none in that time.  For a
        connection that is used for nothing else."""
        self._ready()
        try:
            return self._message(self._end(timeout))
        except errors.TimedOut:
            return None

    def close(self) -> None:
        self._closed = True
        self._drop()
