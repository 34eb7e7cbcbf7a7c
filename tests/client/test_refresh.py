# SPDX-License-Identifier: Apache-2.0
"""libengram changes over to the next generation, and to the next engramd."""
import ctypes
import pathlib
import re
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "integration"))
import engramd  # noqa: E402
from engramd import until  # noqa: E402

SHAPE = ("--layers", "1,14", "--dim", "64", "--vocab-size", "512",
         "--compressed-vocab-size", "400", "--engram-vocab-size", "500")
STATUS = {name: int(number) for name, number in re.findall(
    r"ENGRAM_E(\w+) = (\d+)", (ROOT / "shm/engram_status.h").read_text())}
P = ctypes.c_void_p
U32, U64 = ctypes.c_uint32, ctypes.c_uint64


class OpenParams(ctypes.Structure):
    _fields_ = [("socket", ctypes.c_char_p), ("name", ctypes.c_char_p),
                ("connect_wait_ms", ctypes.c_int),
                ("call_timeout_ms", ctypes.c_int)]


class AttachParams(ctypes.Structure):
    _fields_ = [("table", ctypes.c_char_p), ("layers", P),
                ("num_layers", U32), ("tp_rank", U32), ("tp_size", U32),
                ("writable", ctypes.c_int), ("choose_node", ctypes.c_int),
                ("node", ctypes.c_int32)]


class Info(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("generation", U64),
                ("boot_epoch", U64), ("content_id", ctypes.c_char * 33),
                ("rest", ctypes.c_char * 256)]


@pytest.fixture(scope="module")
def lib():
    if "asan" in engramd.BUILD.name or "tsan" in engramd.BUILD.name:
        pytest.skip("the library needs its sanitizer loaded first")
    lib = ctypes.CDLL(str(engramd.BUILD / "lib" / "libengram.so"))
    for name in ("engram_table_poll", "engram_record_bytes"):
        getattr(lib, name).restype = U64
    lib.engram_table_prepared.restype = P
    lib.engram_last_error.restype = P
    lib.engram_table_refresh.argtypes = [P, U64]
    lib.engram_table_swap.argtypes = [P, U64, P]
    lib.engram_layer_info.argtypes = [P, U32, P]
    return lib


class Table:
    """A client with one table."""

    def __init__(self, lib, sidecar):
        self.lib = lib
        self.client, self.table = P(), P()
        assert not lib.engram_open(ctypes.byref(OpenParams(
            str(sidecar.socket).encode(), b"refresh", 0, 5000)),
            ctypes.byref(self.client))
        self.attach()

    def attach(self):
        assert not self.lib.engram_attach(
            self.client, ctypes.byref(AttachParams(b"demo")),
            ctypes.byref(self.table))

    def info(self, table=None):
        info = Info()
        assert not self.lib.engram_table_info(table or self.table,
                                              ctypes.byref(info))
        return info

    def generation(self):
        return self.info().generation

    def poll(self):
        return self.lib.engram_table_poll(self.table)

    def prepare(self):
        """What it gives, or the error's status."""
        generation = U64()
        status = self.lib.engram_table_prepare(self.table,
                                               ctypes.byref(generation))
        assert not status or not generation.value
        return -status if status else generation.value

    def prepared(self):
        return self.lib.engram_table_prepared(self.table)

    def refresh(self, generation=0):
        return self.lib.engram_table_refresh(self.table, generation)

    def row(self, number=7, table=None):
        out = ctypes.create_string_buffer(
            self.lib.engram_record_bytes(self.table))
        assert not self.lib.engram_read_rows(
            table or self.table, 1, ctypes.byref(ctypes.c_int64(number)), 1,
            out)
        return out.raw

    def address(self, table=None):
        """Of the second layer's codes."""
        out = (ctypes.c_uint64 * 64)()
        assert not self.lib.engram_layer_info(table or self.table, 1, out)
        # layer_id, shard (40 bytes), then the rows
        return tuple(out[:20])

    def end(self):
        assert not self.lib.engram_detach(self.table)
        assert not self.lib.engram_close(self.client)


@pytest.fixture(scope="module")
def seeds(tmp_path_factory):
    root = tmp_path_factory.mktemp("seeds")
    return [engramd.synth(root / str(seed), *SHAPE, "--seed", str(seed))
            for seed in (0, 1)]


@pytest.fixture
def make(tmp_path):
    made = []

    def factory(checkpoint, **more):
        made.append(engramd.Sidecar(
            tmp_path, [{"name": "demo", "checkpoint": str(checkpoint),
                        **more}]))
        made[-1].client().have("demo")
        return made[-1]

    yield factory
    for sidecar in made:
        sidecar.stop()


@pytest.fixture
def sidecar(make, seeds):
    return make(seeds[0])


@pytest.fixture
def table(lib, sidecar):
    table = Table(lib, sidecar)
    yield table
    table.end()


def reload(sidecar, checkpoint, **params):
    client = sidecar.client()
    job = client.finish(client.call("reload", table="demo",
                                    checkpoint=str(checkpoint),
                                    **params)["job"])
    assert job["state"] == "done", job
    return client


def leases(client):
    return {g["generation"]: g["leases"]
            for g in client.table("demo")["generations"]}


def settled(client, expected):
    until(lambda: leases(client) == expected, f"{expected} leases")


def test_to_the_next_generation(sidecar, table, seeds):
    before = table.row()
    client = reload(sidecar, seeds[1])
    assert table.poll() == 2 and table.generation() == 1
    assert table.prepare() == 2
    assert leases(client) == {1: 1, 2: 1}
    # nothing has changed for who reads it
    assert table.row() == before and table.generation() == 1
    view = table.prepared()
    assert table.info(P(view)).generation == 2
    assert table.row(table=P(view)) != before
    new = table.row(table=P(view))
    assert table.prepare() == 2 and table.prepared() == view
    assert table.refresh(2) == 0
    assert table.generation() == table.poll() == 2
    assert table.row() == new and table.prepared() is None
    assert table.info().content_id.decode() == \
        client.table("demo")["content_id"]
    settled(client, {2: 1})
    assert table.prepare() == 0


def test_nothing_new(sidecar, table):
    """Asks nobody."""
    sidecar.pause()
    assert table.prepare() == 0
    assert table.refresh() == 0
    assert table.refresh(1) == STATUS["GONE"]
    assert table.generation() == 1
    sidecar.resume()


def test_in_one_call(sidecar, table, seeds):
    reload(sidecar, seeds[1])
    assert table.refresh() == 0
    assert table.generation() == 2


def test_not_what_is_prepared(sidecar, table, seeds):
    client = reload(sidecar, seeds[1])
    assert table.prepare() == 2
    assert table.refresh(3) == STATUS["GONE"]
    assert table.generation() == 1
    # it went by meanwhile
    reload(sidecar, seeds[0], force=True)
    assert table.prepare() == 3
    settled(client, {1: 1, 3: 1})
    assert table.refresh(2) == STATUS["GONE"]
    assert table.refresh(3) == 0
    settled(client, {3: 1})


def test_detach_what_is_prepared(sidecar, lib, seeds):
    table = Table(lib, sidecar)
    client = reload(sidecar, seeds[1])
    assert table.prepare() == 2
    table.end()
    settled(client, {2: 0})


def test_old_stays_until_it_is_let_go(sidecar, table, seeds):
    before = table.row()
    client = reload(sidecar, seeds[1])
    old = P()
    assert table.prepare() == 2
    assert table.lib.engram_table_swap(table.table, 2, ctypes.byref(old)) == 0
    assert table.row(table=old) == before != table.row()
    assert leases(client) == {1: 1, 2: 1}
    assert table.lib.engram_close(table.client) == STATUS["BUSY"]
    assert not table.lib.engram_detach(old)
    settled(client, {2: 1})


def test_back_again(make, lib, seeds):
    sidecar = make(seeds[0], reload={"retain_seconds": 1000})
    table = Table(lib, sidecar)
    before = table.row()
    client = reload(sidecar, seeds[1])
    assert table.refresh() == 0 and table.row() != before
    client.call("rollback", table="demo")
    assert table.poll() == 1 and table.prepare() == 1
    assert table.refresh(1) == 0 and table.row() == before
    table.end()


@pytest.mark.parametrize("end", ["kill", "keep"])
def test_to_the_next_engramd(sidecar, table, end):
    """It adopts what is mapped: that stays where it is, and is leased."""
    before, address = table.row(), table.address()
    epoch = table.info().boot_epoch
    if end == "kill":
        sidecar.kill()
        # nobody says anything new: nothing is to be done
        assert table.prepare() == 0
    else:
        sidecar.client().call("shutdown", keep=True)
        assert sidecar.wait() == 0
        sidecar.hang_up()
        assert table.poll() == 0
        assert table.prepare() == -STATUS["DISCONNECTED"]
        # not at once again
        assert table.prepare() == -STATUS["DISCONNECTED"]
        assert table.refresh() == STATUS["DISCONNECTED"]
    assert table.row() == before
    sidecar.start()
    client = sidecar.client()
    assert client.have("demo")["adopted"]
    assert table.poll() == 0
    assert until(lambda: max(table.prepare(), 0), "it is prepared") == 1
    assert table.address(P(table.prepared())) == address
    assert table.refresh(1) == 0
    assert table.address() == address and table.row() == before
    assert table.info().boot_epoch != epoch and table.poll() == 1
    settled(client, {1: 1})
    names = [c["name"] for c in client.call("clients")["clients"]]
    assert "refresh" in names


def test_two_tables_of_one_client(sidecar, table, lib):
    """Neither closes the connection that the other has made anew."""
    other = P()
    assert not lib.engram_attach(table.client,
                                 ctypes.byref(AttachParams(b"demo")),
                                 ctypes.byref(other))
    sidecar.client().call("shutdown", keep=True)
    assert sidecar.wait() == 0
    sidecar.hang_up()
    sidecar.start()
    client = sidecar.client()
    client.have("demo")
    assert until(lambda: max(table.prepare(), 0), "it is prepared") == 1
    assert table.refresh(1) == 0
    generation = U64()
    assert not lib.engram_table_prepare(other, ctypes.byref(generation))
    assert not lib.engram_table_refresh(other, generation.value)
    settled(client, {1: 2})
    assert not lib.engram_detach(other)


def test_loaded_anew(sidecar, table, seeds):
    """After a restart that found nothing to adopt."""
    before, address = table.row(), table.address()
    sidecar.stop()
    assert table.poll() == 0 and table.row() == before
    sidecar.start()
    client = sidecar.client()
    client.have("demo")
    assert until(lambda: max(table.prepare(), 0), "it is prepared") == 1
    assert table.refresh(1) == 0
    assert table.row() == before and table.address() != address
    settled(client, {1: 1})


def test_another_geometry(sidecar, table, tmp_path):
    other = engramd.synth(tmp_path / "other", *SHAPE, "--dim", "96")
    sidecar.kill()
    sidecar.config["tables"][0]["checkpoint"] = str(other)
    sidecar.write_config()
    sidecar.start()
    client = sidecar.client()
    client.have("demo")
    before = table.row()
    until(lambda: table.prepare() == -STATUS["GEOMETRY"], "it is refused")
    assert table.prepared() is None and table.row() == before
    assert leases(client)[client.table("demo")["generation"]] == 0
    assert not table.lib.engram_detach(table.table)
    table.attach()
    assert len(table.row()) != len(before)


def test_withdrawn(make, lib, seeds):
    """A reload that drains first: told, detached, attached anew."""
    sidecar = make(seeds[0], reload={"mode": "drain_first"})
    table = Table(lib, sidecar)
    client = sidecar.client()
    job = client.call("reload", table="demo", force=True)["job"]
    until(lambda: table.poll() == 0, "it is withdrawn")
    assert table.prepare() == -STATUS["DRAINING"]
    table.row()
    assert not lib.engram_detach(table.table)
    assert client.finish(job)["state"] == "done"
    table.attach()
    assert table.generation() == 2
    table.end()


def test_engramd_that_does_not_answer(sidecar, lib, seeds):
    """Bounded, and nothing is lost."""
    table = Table(lib, sidecar)
    client = reload(sidecar, seeds[1])
    del client
    short = P()
    assert not lib.engram_open(ctypes.byref(OpenParams(
        str(sidecar.socket).encode(), b"short", 0, 100)), ctypes.byref(short))
    other = P()
    assert not lib.engram_attach(short, ctypes.byref(AttachParams(b"demo")),
                                 ctypes.byref(other))
    reload(sidecar, seeds[0], force=True)
    sidecar.pause()
    generation = U64()
    status = lib.engram_table_prepare(other, ctypes.byref(generation))
    assert status == STATUS["TIMEDOUT"]
    sidecar.resume()
    until(lambda: not lib.engram_table_prepare(other,
                                               ctypes.byref(generation))
          and generation.value == 3, "it is prepared after all")
    assert not lib.engram_table_refresh(other, 3)
    assert not lib.engram_detach(other)
    assert not lib.engram_close(short)
    table.end()
    until(lambda: leases(sidecar.client()) == {3: 0}, "no lease is left")
