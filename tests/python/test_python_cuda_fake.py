# SPDX-License-Identifier: Apache-2.0
"""The CUDA part without a GPU: libengram_cuda on the fake device of tests/cuda,
whose memory is the host's, reached by __cuda_array_interface__ as any library
other than torch would.  test_python_gpu.py does it with torch on a GPU.

In processes of their own, since a process has one libengram_cuda.
"""
import os
import pathlib
import subprocess
import sys

import pytest

import engramd
from python_setting import BUILD, ROOT, SHAPE, start

FAKE = BUILD / "tests" / "fake_cuda"

pytestmark = pytest.mark.skipif(
    not (FAKE / "libengram_cuda.so.0").exists(),
    reason="no fake libengram_cuda: built where there is a CUDA toolkit")

PRELUDE = """
import sys, numpy as np, engram_client
from engram_client import errors
client = engram_client.Client(sys.argv[1])

class Device:
    # an array of the fake device: host memory
    def __init__(self, array):
        self.array = array
        self.__cuda_array_interface__ = {
            "version": 3, "data": (array.__array_interface__["data"][0],
                                   False),
            "shape": array.shape, "strides": array.strides,
            "typestr": array.dtype.str}
    @property
    def shape(self):
        return self.array.shape

def cuda_hash(table, tokens, **more):
    tokens = np.asarray(tokens, dtype=np.int32)
    n = len(tokens)
    out = np.empty((n, len(table.layers), table.num_cols), dtype=np.int32)
    table.hash(Device(tokens), Device(np.arange(n)),
               Device(np.array([0, n], dtype=np.int32)), out=Device(out),
               **more)
    return out

def rows_like(table, ids):
    return np.full((ids.shape[0], table.local_heads, table.dim), 7,
                   dtype=np.uint16)

def refused(error, path, call):
    try:
        call()
    except error as caught:
        assert caught.path == path, caught.path
        return str(caught)
    raise SystemExit(f"not refused: {path}")
"""


def run(sidecar, code):
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + code, sidecar.socket],
        capture_output=True, text=True, check=False, timeout=120,
        env={**os.environ, "ENGRAM_LIB_DIR": str(FAKE),
             "PYTHONPATH": str(ROOT / "clients/python")})
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("placement", ["registered", "device"])
def test_same_as_the_cpu(sidecar, placement):
    run(sidecar, f"""
cpu = client.attach("demo")
with client.attach("demo", device="cuda:0", placement={placement!r},
                   chunk_bytes=1 << 20) as table:
    assert table.device == 0 and "cuda:0" in repr(table)
    progress = table.progress()
    assert progress.ready and progress.done_bytes == progress.total_bytes > 0
    ids = cuda_hash(table, range(40))
    assert np.array_equal(ids, cpu.hash(range(40)))
    for index, layer in enumerate(table.layers):
        for given in (ids, ids[:, index], ids[::2, index]):
            out = rows_like(table, given)
            to = Device(out)
            assert table.lookup(Device(given), layer, out=to,
                                background=index == 0) is to
            assert np.array_equal(out, cpu.lookup(given, layer))
        # and host arrays, by the CPU
        assert np.array_equal(table.lookup(ids, layer),
                              cpu.lookup(ids, layer))
    counted = table.counters(stream=0)
    bad = Device(np.full((2, table.num_cols), -1, dtype=np.int32))
    table.lookup(bad, 3, out=Device(rows_like(table, bad)))
    assert table.counters().misses == counted.misses + 2 * table.num_cols
""")


def test_ranks(sidecar):
    run(sidecar, """
cpu = client.attach("demo")
ids = cpu.hash(range(10))
parts = []
for rank in range(4):
    table = client.attach("demo", device=0, tp_rank=rank, tp_size=4)
    out = rows_like(table, ids)
    table.lookup(Device(ids), 9, out=Device(out))
    parts.append(out)
    table.detach()
joined = np.concatenate(parts, axis=1)
assert np.array_equal(joined[:, :cpu.num_cols], cpu.lookup(ids, 9))
assert not joined[:, cpu.num_cols:].any()
""")


def test_gate_and_sp_rows(sidecar):
    run(sidecar, """
rng = np.random.default_rng(3)
hidden, kv, q, k = (rng.integers(0x3c00, 0x4100, shape).astype(np.uint16)
                    for shape in ((6, 4, 32), (6, 160), (4, 32), (4, 32)))
out = np.zeros_like(hidden)
engram_client.gate(*map(Device, (hidden, kv, q, k)), out=Device(out))
assert np.array_equal(out, engram_client.gate(hidden, kv, q, k))
gathered = rng.integers(0, 9, (2 * 5, 3, 8)).astype(np.uint16)
out = np.zeros((3, 5, 8), dtype=np.uint16)
engram_client.sp_rows(Device(gathered), 5, 5, tp_rank=1, tp_size=2,
                      out=Device(out))
assert np.array_equal(out, engram_client.sp_rows(gathered, 5, 5, tp_rank=1,
                                                 tp_size=2))
""")


@pytest.mark.parametrize("placement", ["registered", "host"])
def test_gather(sidecar, placement):
    run(sidecar, f"""
cpu = client.attach("demo")
ids = cpu.hash(range(200))
table = client.attach("demo", device=0, placement={placement!r})
with table.gather(max_rows=1000) as gather:
    for path in ("auto", "host", "hybrid", "uva"):
        if path == "uva" and {placement!r} == "host":
            continue
        out = rows_like(table, ids)
        gather.lookup(Device(ids), 9, path=path, out=Device(out))
        assert np.array_equal(out, cpu.lookup(ids, 9)), path
    gather.wake()
    # nothing is posted while engramd is busy with what was measured
    while not gather.counters().gathered:
        gather.lookup(Device(ids), 9, path="host", out=Device(out))
        assert np.array_equal(out, cpu.lookup(ids, 9))
    assert gather.counters().failed == 0
    try:
        gather.lookup(Device(ids), 9, path="teleport", out=Device(out))
        raise SystemExit("a path that is none was taken")
    except errors.InvalidArgument as error:
        assert error.path == "path"
    try:
        gather.post(ids[:5], 9)
        raise SystemExit("posted where there are no slots for it")
    except errors.InvalidArgument as error:
        assert error.path == "gather" and "prefetch" in error.fix
table.detach()
""")


@pytest.mark.parametrize("placement", ["registered", "host"])
def test_prefetch(sidecar, placement):
    """Ids that the host has; rows on the device, in the order of posts."""
    run(sidecar, f"""
cpu = client.attach("demo")
table = client.attach("demo", device=0, placement={placement!r})
ids = table.hash(range(200))
assert np.array_equal(ids, cpu.hash(range(200)))

def take(gather, tokens, **more):
    out = rows_like(table, ids[:tokens])
    to = Device(out)
    assert gather.take(out=to, **more) is to
    return out

with table.gather(max_rows=50 * table.num_cols, prefetch=3) as gather:
    for turn in range(4):
        for layer, part in ((3, ids[:50]), (9, ids[50:51]),
                            (9, ids[::7, 1])):
            gather.post(part, layer)
        try:
            gather.post(ids[:1], 3)
            raise SystemExit("more posted than there are slots")
        except errors.Busy as error:
            assert "take the oldest" in error.fix
        # lookups meanwhile are in slots of their own
        out = rows_like(table, ids)
        gather.lookup(Device(ids), 9, out=Device(out))
        assert np.array_equal(out, cpu.lookup(ids, 9))
        assert np.array_equal(take(gather, 50), cpu.lookup(ids[:50], 3))
        assert np.array_equal(take(gather, 1, stream=0),
                              cpu.lookup(ids[50:51], 9))
        assert np.array_equal(take(gather, 29), cpu.lookup(ids[::7, 1], 9))
    try:
        take(gather, 1)
        raise SystemExit("taken where nothing was posted")
    except errors.NotFound:
        pass
    counted = gather.counters()
    assert counted.failed == 0
table.detach()
""")


def test_prefetch_counts_misses(sidecar):
    run(sidecar, """
table = client.attach("demo", device=0)
with table.gather(prefetch=1) as gather:
    gather.post(np.full((2, table.num_cols), -1, dtype=np.int32), 3)
    assert table.counters().misses == 2 * table.num_cols
    out = np.full((2, table.local_heads, table.dim), 7, dtype=np.uint16)
    gather.take(Device(out))
    assert not out.any()
    assert table.counters().misses == 2 * table.num_cols
    # an empty batch has its turn, too
    gather.post(np.empty((0, table.num_cols), dtype=np.int32), 3)
    gather.take(Device(out[:0]))
table.detach()
""")


def test_prefetch_mistakes(sidecar):
    """What is refused takes nothing: the batch is there as before."""
    run(sidecar, """
table = client.attach("demo", device=0)
cpu = client.attach("demo")
ids = table.hash(range(5))

wrong = errors.InvalidArgument
gather = table.gather(max_rows=10 * table.num_cols, prefetch=2)
assert "lookup takes" in refused(
    wrong, "hash_ids", lambda: gather.post(Device(ids), 3))
assert "max_rows" in refused(
    wrong, "num_tokens", lambda: gather.post(table.hash(range(11)), 3))
refused(wrong, "hash_ids", lambda: gather.post(ids[:, :, :3], 3))
refused(errors.NotFound, "layer", lambda: gather.post(ids, 4))
gather.post(ids, 3)
out = np.empty((5, table.local_heads, table.dim), dtype=np.uint16)
refused(wrong, "out", lambda: gather.take())
refused(wrong, "out", lambda: gather.take(out))
refused(wrong, "out", lambda: gather.take(Device(out[1:])))
refused(wrong, "stream", lambda: gather.take(Device(out), stream="x"))
gather.take(Device(out))
assert np.array_equal(out, cpu.lookup(ids, 3))
gather.close()
refused(wrong, "", lambda: gather.take(Device(out)))
refused(wrong, "", lambda: gather.post(ids, 3))
try:
    table.gather(slots=7, prefetch=2)
    raise SystemExit("nine slots")
except errors.InvalidArgument:
    pass
table.detach()
""")


@pytest.mark.parametrize("placement", ["registered", "device", "host"])
def test_refresh(checkpoint, tmp_path, placement):
    """Prepared in the background, and changed over to in stream order."""
    other = engramd.synth(tmp_path / "other", *SHAPE, "--engram-vocab-size",
                          "1000", "--seed", "1")
    server = start(tmp_path, {"demo": checkpoint})
    try:
        run(server, f"""
client.load("demo")
table = client.attach("demo", device=0, placement={placement!r})
cpu = client.attach("demo")
ids = cpu.hash(range(40))
gather = table.gather() if {placement!r} == "host" else table

def lookup():
    out = rows_like(table, ids)
    gather.lookup(Device(ids), 9, out=Device(out))
    return out

old = cpu.lookup(ids, 9)
assert np.array_equal(lookup(), old)
assert table.prepare() == 0 and not table.refresh()
client.reload("demo", checkpoint={str(other)!r})
assert (table.poll(), table.generation) == (2, 1)
assert table.prepare(60) == 2
assert np.array_equal(lookup(), old)
if {placement!r} == "registered":
    view = table.weight_view(9, as_torch=False)
    try:
        table.refresh(2)
        raise SystemExit("refreshed under a view")
    except errors.Busy:
        pass
    del view
assert table.refresh(2, stream=0)
assert (table.poll(), table.generation) == (2, 2)
cpu.refresh()
new = cpu.lookup(ids, 9)
assert not np.array_equal(new, old)
assert np.array_equal(lookup(), new)
assert table.content_id == cpu.content_id
if gather is not table:
    gather.close()
table.detach()
""")
    finally:
        server.stop()


def test_mistakes(sidecar):
    run(sidecar, """
table = client.attach("demo", device=0)
cpu = client.attach("demo")
ids = cpu.hash(range(5))

out = rows_like(table, ids)
wrong = errors.InvalidArgument
# mixed devices, no output, a device that the table is not on
refused(wrong, "hash_ids", lambda: table.lookup(Device(ids), 3, out=out))
refused(wrong, "out", lambda: table.lookup(Device(ids), 3))
text = refused(wrong, "hash_ids", lambda: cpu.lookup(
    Device(ids), 3, out=Device(out)))
assert "attach the table with the device=" in text
refused(wrong, "stream", lambda: table.lookup(
    Device(ids), 3, out=Device(out), stream="x"))
refused(wrong, "device", lambda: client.attach("demo", device="tpu"))
refused(wrong, "placement", lambda: client.attach(
    "demo", device=0, placement="floating"))
refused(errors.CudaError, "", lambda: client.attach("demo", device=99))
assert client.table("demo")["leases"] == 2
""")


def test_registering_in_the_background(sidecar):
    """A process that ends while memory is being registered ends well."""
    run(sidecar, """
table = client.attach("demo", device=0, wait=False)
table.wait(60)
assert table.progress().ready
for _ in range(20):
    client.attach("demo", device=0, wait=False, chunk_bytes=1)
keep = [client.attach("demo", device=0, wait=False, chunk_bytes=1)
        for _ in range(3)]
""")


def test_without_libengram_cuda(sidecar, tmp_path):
    (tmp_path / "libengram.so.0").symlink_to(
        pathlib.Path(BUILD / "lib" / "libengram.so.0").resolve())
    code = PRELUDE + ("try:\n    client.attach('demo', device='cuda')\n"
                      "except errors.Unsupported as error:\n"
                      "    print(error.fix)\n")
    done = subprocess.run(
        [sys.executable, "-c", code, sidecar.socket], capture_output=True,
        text=True, check=True, timeout=60, env={
            **os.environ, "ENGRAM_LIB_DIR": str(tmp_path),
            "PYTHONPATH": str(ROOT / "clients/python")})
    assert "build engramd where nvcc is" in done.stdout
