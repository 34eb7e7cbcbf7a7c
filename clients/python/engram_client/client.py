# SPDX-License-Identifier: Apache-2.0
"""The blocking client."""
from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from . import _rpc, errors
from ._connection import Connection
from .progress import reporter
from .types import Event, Job, Progress, Published, Status, TableStatus

if TYPE_CHECKING:
    from .table import Table


def default_name() -> str:
    """How `engramctl clients` shows this process: 1 to 63 bytes."""
    name = os.path.basename(sys.argv[0] if sys.argv else "") or "python"
    return name.encode(errors="replace")[:63].decode(errors="ignore")


class Client:
    """A connection to engramd, and the tables attached through it.

        with Client() as client:
            client.load("deepseek-v4.1-flash", progress=True)
            with client.attach("deepseek-v4.1-flash") as table:
                ids = table.hash(tokens)
                rows = table.lookup(ids, layer=1)

    socket        path of the control channel; None: $ENGRAMD_SOCKET, else
                  /run/engramd/default.sock
    name          how `engramctl clients` shows this process
    connect_wait  seconds to keep trying for an engramd to come up; None: for
                  ever
    timeout       seconds for one answer; None: for ever

    Any thread may call.  What is started by `load` and the like goes on in
    engramd when this process ends.  Errors are those of
    engram_client.errors.  A connection that engramd has closed is made anew;
    a call under which it closes raises Disconnected, and is not sent again.
    """

    def __init__(self, socket: str | os.PathLike[str] | None = None, *,
                 name: str | None = None, connect_wait: float | None = 0.0,
                 timeout: float | None = 30.0) -> None:
        self.socket = _rpc.socket_path(socket)
        self.name = default_name() if name is None else name
        self.timeout = timeout
        self._tables: weakref.WeakSet[Table] = weakref.WeakSet()
        self._connection = Connection(self.socket, self.name, connect_wait,
                                      timeout)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None,
                 error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<engram_client.Client {self.socket}>"

    def close(self) -> None:
        """Detach all tables attached through this client, and disconnect.
        Views of a table keep it mapped until they are gone."""
        for table in list(self._tables):
            table.detach()
        self._connection.close()

    # ---- the sidecar ----

    @property
    def server_version(self) -> str:
        """Of the engramd met at the last connect, "0.1.0"."""
        return str(self._connection.hello["version"])

    @property
    def boot_epoch(self) -> int:
        """Random at each start of engramd: another number is another
        process."""
        return int(self._connection.hello["boot_epoch"], 16)

    @property
    def instance(self) -> str:
        return str(self._connection.hello["instance"])

    @property
    def capabilities(self) -> frozenset[str]:
        return frozenset(self._connection.hello.get("capabilities", ()))

    def call(self, method: str, **params: Any) -> Any:
        """Any method of the control protocol (sidecar/PROTOCOL.md).
        Parameters that are None are left out."""
        return self._connection.call(method, params)

    def ping(self) -> None:
        self.call("ping")

    def status(self) -> Status:
        """Instance, memory, tables, running jobs."""
        return self.call("status")

    def methods(self) -> dict[str, Any]:
        """All methods and errors, as rpc.discover lists them."""
        return self.call("rpc.discover")

    def clients(self) -> list[dict[str, Any]]:
        """Who is connected, and what they have attached."""
        return self.call("clients")["clients"]

    def config(self) -> dict[str, Any]:
        """As given in engramd's configuration file."""
        return self.call("config.get")["config"]

    def shutdown(self, keep: bool = False) -> None:
        """Stop engramd; with `keep` the next one adopts the tables."""
        self.call("shutdown", keep=keep or None)

    # ---- tables ----

    def tables(self) -> list[TableStatus]:
        """All tables, loaded or not."""
        return self.call("tables")["tables"]

    def table(self, name: str) -> TableStatus:
        """One table; NotFound."""
        return self.call("tables", table=name)["tables"][0]

    def load(self, table: str, *, wait: bool = True,
             progress: Progress = None, **params: Any) -> Job | None:
        """Load a table, and wait until it is ready.

        params    for a table that is not configured: checkpoint, layout,
                  layers, ... (sidecar/PROTOCOL.md)
        wait      False: return at once with the job as it begins
        progress  called with the job as it goes; True: a bar or lines

        Returns the job, that of somebody else if the table is being loaded
        as configured; None when it was ready already.  Raises what the job
        failed with: NoSpace (needed, available), CheckpointInvalid,
        ChecksumMismatch, ...; Busy (job) while anything else is done with the
        table.
        """
        return self._job("load", wait, progress, table=table, **params)

    def unload(self, table: str, *, wait: bool = True,
               progress: Progress = None) -> Job | None:
        """Unload a table once its last lease ends.  None: it was absent."""
        return self._job("unload", wait, progress, table=table)

    def reload(self, table: str, *, checkpoint: str | None = None,
               hold: bool = False, force: bool = False, wait: bool = True,
               progress: Progress = None) -> Job | None:
        """Build the table's next generation and, unless `hold`, publish it:
        those who attach from then on get it, others move when they choose
        (Table.refresh).

        checkpoint  another directory than the table's
        hold        leave it to publish() or discard(), so that all nodes of a
                    fleet can change over at one time
        force       though the files are those that it was built from;
                    otherwise the job ends at once, with "unchanged"

        NoSpace when two do not fit, GeometryMismatch for what clients can not
        change over to.
        """
        return self._job("reload", wait, progress, table=table,
                         checkpoint=checkpoint, hold=hold or None,
                         force=force or None)

    def publish(self, table: str,
                content_id: str | None = None) -> Published:
        """What a reload with `hold` has built is lent from now on; with
        `content_id` only if it is that."""
        return self.call("publish", table=table, content_id=content_id)

    def discard(self, table: str) -> None:
        """What a reload with `hold` has built is freed."""
        self.call("discard", table=table)

    def rollback(self, table: str) -> Published:
        """The generation before is lent again; GenerationGone if it is not
        kept (reload.retain_seconds of the configuration)."""
        return self.call("rollback", table=table)

    def verify(self, table: str, *, wait: bool = True,
               progress: Progress = None) -> Job | None:
        """Compare every byte with its checksum; raises ChecksumMismatch."""
        return self._job("verify", wait, progress, table=table)

    def _job(self, method: str, wait: bool, progress: Progress,
             **params: Any) -> Job | None:
        try:
            number = self.call(method, **params)["job"]
        except errors.Busy as busy:
            number = busy.job
            if number is None or \
                    not _rpc.same_job(method, params, self.job(number)):
                raise
        if number is None:
            return None
        return self.wait(number, progress=progress) if wait else \
            self.job(number)

    # ---- jobs ----

    def job(self, job: int) -> Job:
        return self.call("job.get", job=job)

    def wait(self, job: int, *, progress: Progress = None) -> Job:
        """Until a job has ended; raises what it failed with.  Ctrl-C leaves
        it running."""
        report = reporter(progress)
        # one of its own, so that other threads' calls need not wait
        follower = Connection(self.socket, self.name, 0.0, self.timeout)
        try:
            while True:
                state = follower.call("job.wait", {
                    "job": job, "timeout_seconds": _rpc.JOB_WAIT_SECONDS})
                report(state)
                if state["state"] != "running":
                    return _rpc.finished(state)
        finally:
            follower.close()

    def cancel(self, job: int) -> Job:
        return self.call("job.cancel", job=job)

    # ---- events ----

    def events(self, timeout: float | None = None) -> Iterator[Event]:
        """Notifications as they come: first the present state of each table
        and of each running job, then changes (sidecar/PROTOCOL.md, Events).

        Ends when none came for `timeout` seconds (None: never).  Raises
        Disconnected when engramd goes.  Uses a connection of its own, closed
        when the iterator is.
        """
        connection = Connection(self.socket, self.name, 0.0, self.timeout)
        try:
            connection.call("events.subscribe", {})
            while True:
                message = connection.next_event(timeout)
                if message is None:
                    return
                yield {"method": message["method"],
                       "params": message.get("params", {})}
        finally:
            connection.close()

    # ---- attaching ----

    def attach(self, table: str, *, layers: Sequence[int] | None = None,
               tp_rank: int = 0, tp_size: int = 1, device: Any = None,
               placement: str = "registered", chunk_bytes: int = 0,
               node: int | None = None, wait: bool = True) -> Table:
        """Map a table that is ready; see engram_client.Table.

        layers       layer ids; None: all
        tp_rank, tp_size
                     map the rows of this tensor-parallel rank only: whole
                     heads, ceil(heads / tp_size) a rank
        device       None or "cpu", or a CUDA device: "cuda", "cuda:1", 1 or a
                     torch.device.  "cuda" is the current one
        placement    on a CUDA device: "registered", read where it is;
                     "device", copied into device memory; "host", not
                     registered, rows are gathered by engramd
        chunk_bytes  registered at once; 0: 4 GiB
        node         of a table with a copy on each node of memory, the copy
                     nearest to this node; None: nearest to the device, or to
                     the cores that this process may run on
        wait         until it is registered, 20 to 70 ms a GiB; False: lookups
                     raise NotReady before it is (Table.wait)

        NotFound, NotReady (job), Draining, ShardInvalid, PermissionDenied,
        CudaError.  Unsupported when libengram is not found.
        """
        from .table import Table

        return Table(self, table, layers=layers, tp_rank=tp_rank,
                     tp_size=tp_size, device=device, placement=placement,
                     chunk_bytes=chunk_bytes, node=node, wait=wait)
