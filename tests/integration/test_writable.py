# SPDX-License-Identifier: Apache-2.0
"""Attaching for writing, as some devices need: who gets it, and what."""
import fcntl
import os
import resource
import socket

import pytest

from engramd import RpcError, connect_as, until


def refused(client, **params):
    with pytest.raises(RpcError) as caught:
        client.call("attach", table="demo", **params)
    assert client.fds == []
    return caught.value


def modes(client):
    """How the descriptors that came are opened, the control page's first."""
    return [fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE
            for fd in client.fds]


def test_read_only_unless_asked(client):
    client.load("demo")
    for params in {}, {"writable": False}:
        assert client.call("attach", table="demo",
                           **params)["writable"] is False
        assert modes(client) == [os.O_RDONLY] * 3
        client.close_fds()
    assert client.table("demo")["writable_leases"] == 0


def test_writable(sidecar, client):
    client.load("demo")
    before = sidecar.fd_count()
    plain = sidecar.client()
    plain.call("attach", table="demo")
    result = client.call("attach", table="demo", writable=True)
    assert result["writable"] is True
    assert modes(client) == [os.O_RDONLY, os.O_RDWR, os.O_RDWR]
    for fd, other in zip(client.fds, plain.fds):
        assert os.path.sameopenfile(fd, other)
        size = os.fstat(fd).st_size
        assert os.pread(fd, size, 0) == os.pread(other, size, 0)
    assert [[lease["writable"] for lease in c["leases"]]
            for c in client.call("clients")["clients"]] == [[True], [False]]
    table = client.table("demo")
    assert (table["leases"], table["writable_leases"]) == (2, 1)
    assert client.call("status")["tables"][0]["writable_leases"] == 1
    assert f'msg="attached writable" connection=2 pid={os.getpid()}' \
        in sidecar.log()
    # the sidecar keeps none of those that it sent: one connection more
    assert sidecar.fd_count() == before + 1
    client.call("detach", lease=result["lease"])
    table = client.table("demo")
    assert (table["leases"], table["writable_leases"]) == (1, 0)


def test_one_layer(client):
    client.load("demo")
    layer = client.table("demo")["layers"][1]["layer_id"]
    client.call("attach", table="demo", layers=[layer], writable=True)
    assert modes(client) == [os.O_RDONLY, os.O_RDWR]


def test_verify_finds_what_was_written(client):
    client.load("demo")
    client.call("attach", table="demo", writable=True)
    fd = client.fds[2]
    end = os.fstat(fd).st_size
    layer = client.table("demo")["layers"][1]
    # the rows are the end of it, up to the padding of a page
    place = end - layer["rows"] * (layer["dim"] + layer["dim"] // 32)
    was = os.pread(fd, 1, place)
    os.pwrite(fd, bytes([was[0] ^ 1]), place)
    job = client.finish(client.call("verify", table="demo")["job"])
    assert job["state"] == "failed"
    assert job["error"]["data"]["name"] == "ChecksumMismatch"
    os.pwrite(fd, was, place)
    job = client.finish(client.call("verify", table="demo")["job"])
    assert job["state"] == "done"


def test_memfd_is_sealed(make, checkpoint):
    sidecar = make([{"name": "demo", "checkpoint": str(checkpoint),
                     "load": "on_demand"}], start=False,
                   memory={"backing": "memfd", "lock": "off"})
    sidecar.start(wait=False)
    until(sidecar.answers, "the sidecar answers")
    client = sidecar.client()
    client.load("demo")
    before = sidecar.fd_count()
    error = refused(client, writable=True)
    assert error.name == "Unsupported"
    assert error.message.startswith("writable: engramd.")
    assert error.message.endswith(": the memfd is sealed against writing")
    assert error.data["fix"] == (
        'set memory.backing of the configuration to "shm" or "hugetlbfs", '
        "or attach read-only")
    assert error.data["path"] == "writable"
    assert client.table("demo")["leases"] == 0
    assert sidecar.fd_count() == before
    client.call("attach", table="demo", writable=False)
    assert modes(client) == [os.O_RDONLY] * 3


def test_needs_access_to_change(make, checkpoint):
    if os.geteuid() != 0:
        pytest.skip("needs root to become another user")
    sidecar = make([{"name": "demo", "checkpoint": str(checkpoint),
                     "load": "on_demand"}],
                   socket={"mode": "0666"},
                   access={"change": {"uids": [65533]}})
    os.chmod(sidecar.run, 0o755)
    sidecar.client().load("demo")
    client = connect_as(sidecar, 65534, 65534, [])
    error = refused(client, writable=True)
    assert error.name == "PermissionDenied"
    assert error.message == \
        "uid 65534, gid 65534 may not attach a table writable"
    assert error.data["fix"] == (
        "add it to access.change of the configuration: who can write to a "
        "table can spoil it for all; or attach read-only")
    assert error.data["path"] == "writable"
    assert client.table("demo")["leases"] == 0
    client.call("attach", table="demo")
    assert modes(client) == [os.O_RDONLY] * 3
    client.close()
    client = connect_as(sidecar, 65533, 65534, [])
    client.call("attach", table="demo", writable=True)
    assert modes(client) == [os.O_RDONLY, os.O_RDWR, os.O_RDWR]
    client.close()


@pytest.mark.parametrize("value", [1, 0, "true", None, [], {}])
def test_mistyped(client, value):
    client.load("demo")
    error = refused(client, writable=value)
    assert (error.code, error.name) == (-32602, "InvalidArgument")
    assert error.data["path"] == "writable"


def test_misspelt(client):
    client.load("demo")
    error = refused(client, writeable=True)
    assert error.data["path"] == "writeable"
    assert "writable" in error.data["fix"]


def test_client_closes_before_the_reply(sidecar, client):
    """What was opened for the answer is closed when nobody gets it."""
    client.load("demo")
    before = sidecar.fd_count()
    request = b'{"jsonrpc":"2.0","id":1,"method":"attach",' \
        b'"params":{"table":"demo","writable":true}}\n'
    for _ in range(200):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.connect(str(sidecar.socket))
            sock.sendall(request)
    until(lambda: client.call("status")["connections"] == 1,
          "all connections are gone")
    table = client.table("demo")
    assert (table["leases"], table["writable_leases"]) == (0, 0)
    assert sidecar.fd_count() == before


def test_sidecar_out_of_descriptors(sidecar, client):
    """One of two layers can still be opened: nothing of it stays."""
    client.load("demo")
    before = sidecar.fd_count()
    pid = sidecar.process.pid
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    used = {int(fd) for fd in os.listdir(f"/proc/{pid}/fd")}
    free = sorted(set(range(max(used) + 2)) - used)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (free[0] + 1, limits[1]))
    error = refused(client, writable=True)
    assert error.data["errno"] == 24  # EMFILE
    assert "RLIMIT_NOFILE" in error.data["fix"]
    assert client.table("demo")["leases"] == 0
    assert sidecar.fd_count() == before
    resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
    client.call("attach", table="demo", writable=True)
    assert modes(client) == [os.O_RDONLY, os.O_RDWR, os.O_RDWR]
