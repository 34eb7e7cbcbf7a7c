# SPDX-License-Identifier: Apache-2.0
"""The client for asyncio."""
from __future__ import annotations

import asyncio
import collections
import os
from collections.abc import AsyncIterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from . import _rpc, errors
from .client import Client, default_name
from .progress import reporter
from .types import Event, Job, Progress, Published, Status, TableStatus

if TYPE_CHECKING:
    from .table import Table


class _Stream:
    """One connection; one call at a time."""

    def __init__(self, path: str, name: str, timeout: float | None) -> None:
        self.path = path
        self.name = name
        self.timeout = timeout
        self.hello: dict[str, Any] = {}
        self._lock = asyncio.Lock()
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def connect(self, wait: float | None) -> None:
        loop = asyncio.get_running_loop()
        end = None if wait is None else loop.time() + wait
        pause = 0.02
        while True:
            try:
                return await self._connect_once()
            except errors.EngramError as error:
                late = end is not None and loop.time() >= end
                if late or not _rpc.may_come_up(error):
                    raise
            await asyncio.sleep(pause)
            pause = min(2 * pause, 1.0)

    async def _connect_once(self) -> None:
        self._lines = _rpc.Lines()
        self._requests = _rpc.Requests()
        self._messages: collections.deque[_rpc.Message] = collections.deque()
        try:
            self._reader, self._writer = await asyncio.open_unix_connection(
                self.path)
        except OSError as error:
            raise _rpc.not_there(self.path, error) from error
        try:
            self.hello = _rpc.greeting(
                await asyncio.wait_for(self.message(), self.timeout))
            if self.name:
                await self._answer("client.name", {"name": self.name})
        except asyncio.TimeoutError as error:
            await self.close()
            raise errors.TimedOut("engramd did not greet in time") from error
        except BaseException:
            await self.close()
            raise

    async def message(self) -> _rpc.Message:
        assert self._reader is not None
        while not self._messages:
            try:
                data = await self._reader.read(_rpc.RECEIVE)
            except OSError as error:
                raise _rpc.gone() from error
            if not data:
                raise _rpc.gone()
            self._messages.extend(self._lines.feed(data))
        return self._messages.popleft()

    async def _answer(self, method: str, params: dict[str, Any]) -> Any:
        ident, data = self._requests.encode(method, params)
        assert self._writer is not None
        try:
            self._writer.write(data)
            await self._writer.drain()
        except OSError as error:
            raise _rpc.gone() from error
        while True:
            message = await self.message()
            if "error" in message and message.get("id") is None:
                raise errors.from_json(message["error"])
            if message.get("id") == ident:
                return _rpc.result_of(message)

    async def call(self, method: str, params: dict[str, Any],
                   timeout: float | None = None) -> Any:
        async with self._lock:
            if self._reader is not None and self._reader.at_eof():
                await self.close()
            if self._writer is None:
                await self.connect(0.0)
            timeout = timeout or self.timeout
            try:
                return await asyncio.wait_for(self._answer(method, params),
                                              timeout)
            except asyncio.TimeoutError as error:
                await self.close()
                raise errors.TimedOut(
                    "engramd did not answer in time") from error
            except (errors.Disconnected, errors.ProtocolError,
                    asyncio.CancelledError):
                # an answer that comes late must not be another's
                await self.close()
                raise

    async def close(self) -> None:
        writer, self._writer, self._reader = self._writer, None, None
        if writer is not None:
            writer.close()


class AsyncClient:
    """As Client, for servers that run on asyncio.

        async with AsyncClient() as client:
            await client.load("deepseek-v4.1-flash")
            async for event in client.events():
                ...

    Parameters, results and errors are those of Client.  One event loop's.
    """

    def __init__(self, socket: str | os.PathLike[str] | None = None, *,
                 name: str | None = None, connect_wait: float | None = 0.0,
                 timeout: float | None = 30.0) -> None:
        self.socket = _rpc.socket_path(socket)
        self.name = default_name() if name is None else name
        self.timeout = timeout
        self._connect_wait = connect_wait
        self._stream = _Stream(self.socket, self.name, timeout)
        self._blocking: Client | None = None

    async def connect(self) -> AsyncClient:
        """What `async with` does."""
        await self._stream.connect(self._connect_wait)
        return self

    async def __aenter__(self) -> AsyncClient:
        return await self.connect()

    async def __aexit__(self, kind: type[BaseException] | None,
                        error: BaseException | None,
                        trace: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        blocking, self._blocking = self._blocking, None
        if blocking is not None:
            await asyncio.to_thread(blocking.close)
        await self._stream.close()

    @property
    def server_version(self) -> str:
        return str(self._stream.hello["version"])

    @property
    def boot_epoch(self) -> int:
        return int(self._stream.hello["boot_epoch"], 16)

    @property
    def instance(self) -> str:
        return str(self._stream.hello["instance"])

    @property
    def capabilities(self) -> frozenset[str]:
        return frozenset(self._stream.hello.get("capabilities", ()))

    async def call(self, method: str, **params: Any) -> Any:
        return await self._stream.call(method, params)

    async def ping(self) -> None:
        await self.call("ping")

    async def status(self) -> Status:
        return await self.call("status")

    async def clients(self) -> list[dict[str, Any]]:
        return (await self.call("clients"))["clients"]

    async def methods(self) -> dict[str, Any]:
        return await self.call("rpc.discover")

    async def config(self) -> dict[str, Any]:
        return (await self.call("config.get"))["config"]

    async def shutdown(self, keep: bool = False) -> None:
        await self.call("shutdown", keep=keep or None)

    async def tables(self) -> list[TableStatus]:
        return (await self.call("tables"))["tables"]

    async def table(self, name: str) -> TableStatus:
        return (await self.call("tables", table=name))["tables"][0]

    async def load(self, table: str, *, wait: bool = True,
                   progress: Progress = None, **params: Any) -> Job | None:
        return await self._job("load", wait, progress, table=table, **params)

    async def unload(self, table: str, *, wait: bool = True,
                     progress: Progress = None) -> Job | None:
        return await self._job("unload", wait, progress, table=table)

    async def reload(self, table: str, *, checkpoint: str | None = None,
                     hold: bool = False, force: bool = False,
                     wait: bool = True,
                     progress: Progress = None) -> Job | None:
        return await self._job("reload", wait, progress, table=table,
                               checkpoint=checkpoint, hold=hold or None,
                               force=force or None)

    async def publish(self, table: str,
                      content_id: str | None = None) -> Published:
        return await self.call("publish", table=table, content_id=content_id)

    async def discard(self, table: str) -> None:
        await self.call("discard", table=table)

    async def rollback(self, table: str) -> Published:
        return await self.call("rollback", table=table)

    async def verify(self, table: str, *, wait: bool = True,
                     progress: Progress = None) -> Job | None:
        return await self._job("verify", wait, progress, table=table)

    async def _job(self, method: str, wait: bool, progress: Progress,
                   **params: Any) -> Job | None:
        try:
            number = (await self.call(method, **params))["job"]
        except errors.Busy as busy:
            number = busy.job
            if number is None or not _rpc.same_job(
                    method, params, await self.job(number)):
                raise
        if number is None:
            return None
        if not wait:
            return await self.job(number)
        return await self.wait(number, progress=progress)

    async def job(self, job: int) -> Job:
        return await self.call("job.get", job=job)

    async def wait(self, job: int, *, progress: Progress = None) -> Job:
        report = reporter(progress)
        stream = _Stream(self.socket, self.name, self.timeout)
        try:
            while True:
                state = await stream.call("job.wait", {
                    "job": job, "timeout_seconds": _rpc.JOB_WAIT_SECONDS})
                report(state)
                if state["state"] != "running":
                    return _rpc.finished(state)
        finally:
            await stream.close()

    async def cancel(self, job: int) -> Job:
        return await self.call("job.cancel", job=job)

    async def events(self) -> AsyncIterator[Event]:
        """As Client.events; leave the loop, or cancel, to end it."""
        stream = _Stream(self.socket, self.name, self.timeout)
        try:
            await stream.call("events.subscribe", {})
            while True:
                message = await stream.message()
                yield {"method": message["method"],
                       "params": message.get("params", {})}
        finally:
            await stream.close()

    async def attach(self, table: str, **options: Any) -> Table:
        """Client.attach, in a thread; the table itself is not asynchronous."""
        if self._blocking is None:
            self._blocking = await asyncio.to_thread(
                Client, self.socket, name=self.name, timeout=self.timeout)
        return await asyncio.to_thread(self._blocking.attach, table,
                                       **options)
