# SPDX-License-Identifier: Apache-2.0
"""Huge pages under tables: what is asked for, what is obtained, what is said."""
import ctypes
import mmap
import os

import pytest

import engramd

HUGE = 2 << 20
MADV_COLLAPSE = 25


def kernel_refuses():
    """Why the kernel makes no huge page for us, or nothing."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = os.memfd_create("probe")
    os.ftruncate(fd, 2 * HUGE)
    with mmap.mmap(fd, 2 * HUGE) as room:
        begin = ctypes.addressof(ctypes.c_char.from_buffer(room))
        # The mapping begins where the kernel likes: only an address that
        # agrees with the offset will do.
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int,
                              ctypes.c_int, ctypes.c_int, ctypes.c_long]
        at = -(-begin // HUGE) * HUGE
        shared_fixed = mmap.MAP_SHARED | 0x10
        assert libc.mmap(at, HUGE, mmap.PROT_READ | mmap.PROT_WRITE,
                         shared_fixed, fd, 0) == at
        ctypes.memset(at, 1, 1)
        result = libc.madvise(ctypes.c_void_p(at), ctypes.c_size_t(HUGE),
                              MADV_COLLAPSE)
        errno = ctypes.get_errno()
    os.close(fd)
    return os.strerror(errno) if result else None


def load(make, checkpoint, **memory):
    sidecar = make([{"name": "demo", "checkpoint": str(checkpoint)}],
                   memory=memory)
    client = sidecar.client()
    engramd.until(lambda: client.table("demo")["state"]
                  in ("ready", "failed"), "loaded")
    return client.table("demo")


@pytest.mark.parametrize("backing", ["shm", "memfd"])
@pytest.mark.parametrize("wish", ["try", "require"])
def test_obtained(make, checkpoint, backing, wish):
    reason = kernel_refuses()
    if reason:
        pytest.skip(f"the kernel makes no huge page: {reason}")
    table = load(make, checkpoint, backing=backing, huge_pages=wish)
    assert table["state"] == "ready"
    assert [layer["huge_bytes"] for layer in table["layers"]] == [
        layer["bytes"] for layer in table["layers"]]
    assert table["huge_advice"] is None


def test_off(make, checkpoint):
    table = load(make, checkpoint, huge_pages="off")
    assert table["state"] == "ready"
    for layer in table["layers"]:
        assert 0 <= layer["huge_bytes"] <= layer["bytes"]
    if any(x["huge_bytes"] < x["bytes"] for x in table["layers"]):
        assert "huge_pages" in table["huge_advice"]
    else:
        assert table["huge_advice"] is None


@pytest.fixture
def directory():
    path = engramd.SHM / f"engramd-test-{os.getpid()}"
    path.mkdir()
    yield path
    path.rmdir()


def test_path(directory, make, checkpoint):
    """Another directory of a tmpfs than /dev/shm itself."""
    sidecar = make([{"name": "demo", "checkpoint": str(checkpoint)}],
                   memory={"path": str(directory)})
    client = sidecar.client()
    engramd.until(lambda: client.table("demo")["state"] == "ready", "loaded")
    names = {layer["segment"] for layer in client.table("demo")["layers"]}
    assert names <= set(os.listdir(directory))


def test_path_on_a_disk(make, checkpoint, tmp_path_factory):
    directory = tmp_path_factory.mktemp("disk")
    if os.stat(directory).st_dev == os.stat("/dev/shm").st_dev:
        pytest.skip("the temporary directory is in memory")
    table = load(make, checkpoint, path=str(directory))
    assert table["state"] == "failed"
    assert "is not in memory: it is no tmpfs" in table["error"]["message"]
    assert "memory.path" in table["error"]["data"]["fix"]
