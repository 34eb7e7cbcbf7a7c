# SPDX-License-Identifier: Apache-2.0
"""Tables on the CPU, with NumPy arrays and torch tensors, against the formula of
the rows and a model of the hash."""
import ctypes
import gc
import os
import pathlib
import subprocess
import sys
import threading

import numpy as np
import pytest

import engram_client
import hash_model
import rows_of
from python_setting import COLS, DIM, HEADS, LAYERS, MAX_NGRAM, ROOT, VOCAB
from engram_client import _abi, _library, errors


def to(xp, array):
    return array if xp is np else xp.from_numpy(np.array(array))


def floats(rows):
    """bf16 of either library, in float64."""
    if isinstance(rows, np.ndarray):
        return engram_client.float32(rows).astype(np.float64)
    return rows.double().cpu().numpy()


def bf16(xp, array):
    """Of values that bf16 holds."""
    bits = (np.asarray(array, dtype=np.float32).view(np.uint32) >> 16).astype(
        np.uint16)
    return bits if xp is np else xp.from_numpy(bits.view(np.int16)).view(
        xp.bfloat16)


def parameters(table):
    """For hash_model, from the table itself."""
    found = _abi.HashParams()
    _library.check(_library.engram().hash_params(table._mapped().table,
                                                 ctypes.addressof(found)))

    def numbers(pointer, layer, count):
        arrays = ctypes.cast(pointer, ctypes.POINTER(
            ctypes.POINTER(ctypes.c_int64)))
        return arrays[layer][:count]

    def by_order(pointer, layer):
        flat = numbers(pointer, layer, COLS)
        return [flat[i:i + HEADS] for i in range(0, COLS, HEADS)]

    layers = [(numbers(found.multipliers, i, MAX_NGRAM),
               by_order(found.primes, i), by_order(found.offsets, i))
              for i in range(len(table.layers))]
    token_map = ctypes.cast(found.token_map, ctypes.POINTER(ctypes.c_int32))
    return layers, token_map[:found.token_map_len], found.pad_id


def modelled(table, requests):
    layers, token_map, pad = parameters(table)
    return np.array([[hash_model.hash_token(request, i, layer, token_map, pad)
                      for layer in layers]
                     for request in requests
                     for i in range(len(request.ids))], dtype=np.int32)


def test_what_it_is(table, client):
    status = client.table("demo")
    assert table.name == "demo" and table.layers == LAYERS
    assert table.generation == status["generation"] == table.poll()
    assert table.content_id == status["content_id"]
    assert (table.num_cols, table.local_heads) == (COLS, COLS)
    assert (table.dim, table.max_ngram, table.num_heads) == (
        DIM, MAX_NGRAM, HEADS)
    assert table.token_map_len == VOCAB
    assert table.record_bytes == DIM + DIM // 32
    assert table.device == -1 and table.progress().ready
    for layer, wanted in zip(LAYERS, status["layers"]):
        found = table.layer(layer)
        assert found.rows == wanted["rows"] == found.row_end
        assert sum(table.head_rows(layer)) == found.rows
        assert (found.dtype, found.scale, found.block_size) == (
            "fp8_e4m3", "ue8m0", 32)
    assert "layers [3, 9]" in repr(table)


def test_layers_go_by_their_ids(table):
    ids = table.hash([1, 2, 3])
    for wrong in (0, 1, None, -1):
        with pytest.raises(errors.NotFound, match="layer"):
            table.lookup(ids, wrong)


@pytest.mark.parametrize("layer", LAYERS)
def test_lookup(table, xp, layer):
    ids = table.hash(np.arange(40) % VOCAB)[:, LAYERS.index(layer)].copy()
    ids[3, 2] = -1
    ids[5, 0] = table.layer(layer).rows
    found = floats(table.lookup(to(xp, ids), layer))
    assert np.array_equal(found, rows_of.lookup(
        layer, ids, DIM, (0, table.layer(layer).rows)))
    assert table.counters().misses == 2


def test_lookup_takes_what_hash_gives(table, xp):
    """All layers' ids, strided ids, and an output of one's own."""
    all_ids = table.hash(to(xp, np.arange(30, dtype=np.int32)))
    for index, layer in enumerate(LAYERS):
        out = bf16(xp, np.ones((30, COLS, DIM)))
        assert table.lookup(all_ids, layer, out=out) is out
        one = table.lookup(all_ids[:, index], layer)
        assert np.array_equal(floats(out), floats(one))
        assert np.array_equal(floats(out), rows_of.lookup(
            layer, np.asarray(all_ids)[:, index], DIM))
    reversed_ids = to(xp, np.asarray(all_ids)[::-1, 0].copy())
    wide = np.zeros((60, COLS * 2), dtype=np.int32)
    wide[::2, ::2] = reversed_ids
    found = table.lookup(to(xp, wide)[::2, ::2], LAYERS[0])
    assert np.array_equal(floats(found),
                          floats(table.lookup(reversed_ids, LAYERS[0])))


def test_negative_strides_of_numpy(table):
    ids = table.hash(np.arange(30))
    assert np.array_equal(table.lookup(ids[::-1], 3),
                          table.lookup(ids, 3)[::-1])


def test_zero_tokens(table, xp):
    ids = table.hash(to(xp, np.zeros(0, dtype=np.int32)))
    assert tuple(ids.shape) == (0, 2, COLS)
    assert tuple(table.lookup(ids, 3).shape) == (0, COLS, DIM)


@pytest.mark.parametrize("size", [2, 4, 15])
def test_ranks_have_their_heads(client, xp, size):
    """Put side by side they are the whole; padded heads are zeros."""
    with client.attach("demo", layers=[9]) as whole:
        ids = whole.hash(to(xp, np.arange(20, dtype=np.int32)))
        wanted = floats(whole.lookup(ids))
        parts, bytes_mapped = [], 0
        for rank in range(size):
            with client.attach("demo", layers=[9], tp_rank=rank,
                               tp_size=size) as part:
                assert (part.tp_rank, part.tp_size) == (rank, size)
                assert part.local_heads == -(-COLS // size)
                parts.append(floats(part.lookup(ids)))
                bytes_mapped += part.layer().row_end - part.layer().row_begin
        assert bytes_mapped == whole.layer().rows
    joined = np.concatenate(parts, axis=1)
    assert np.array_equal(joined[:, :COLS], wanted)
    assert not joined[:, COLS:].any()


def test_a_rank_without_heads(client):
    with pytest.raises(errors.ShardInvalid):
        client.attach("demo", tp_rank=0, tp_size=COLS + 1)
    with pytest.raises(errors.InvalidArgument):
        client.attach("demo", tp_rank=2, tp_size=2)


def test_hash_one_request(table, xp):
    tokens = np.random.default_rng(5).integers(0, VOCAB, 50)
    found = np.asarray(table.hash(to(xp, tokens)))
    request = hash_model.Request(0, tokens.tolist(), [False] * 50)
    assert np.array_equal(found, modelled(table, [request]))


def test_hash_everything(table, xp):
    """Two requests with masks, look-back windows and a slot cache, strided."""
    rng = np.random.default_rng(6)
    tokens = rng.integers(0, VOCAB, 30)
    dead = rng.random(30) < 0.1
    starts, bounds = (9, 40), (0, 12, 30)
    window = rng.integers(0, VOCAB, (2, 2))
    window[1, 1] = -1  # not known: from the cache
    window_dead = np.array([[False, True], [False, False]])
    block_size, blocks = 4, 16
    table_of_blocks = rng.permutation(2 * blocks).reshape(2, blocks)
    cache = rng.integers(0, 300, 2 * blocks * block_size)
    requests, positions = [], []
    for r, start in enumerate(starts):
        slots = [table_of_blocks[r, p // block_size] * block_size +
                 p % block_size for p in range(start)]
        chunk = slice(bounds[r], bounds[r + 1])
        requests.append(hash_model.Request(
            start, tokens[chunk].tolist(), dead[chunk].tolist(),
            window[r].tolist(), window_dead[r].tolist(),
            cache[slots].tolist()))
        positions += range(start, start + bounds[r + 1] - bounds[r])
    twice = np.repeat(tokens.astype(np.int32), 2)
    found = table.hash(
        to(xp, twice)[::2], to(xp, np.array(positions)),
        to(xp, np.array(bounds, dtype=np.int32)), dead_mask=to(xp, dead),
        lookback_ids=to(xp, window.astype(np.int32)),
        lookback_dead=to(xp, window_dead),
        slot_cache=to(xp, cache.astype(np.int32)),
        block_table=to(xp, table_of_blocks), block_size=block_size)
    assert np.array_equal(np.asarray(found), modelled(table, requests))


def test_hash_writes_slots(table, xp):
    """The ids of the batch, where the mapping says; what later ones see."""
    _, token_map, _ = parameters(table)
    tokens = np.array([7, 8, 9, 10])
    cache = to(xp, np.zeros(8, dtype=np.int32))
    table.hash(to(xp, tokens), slot_cache=cache,
               slot_mapping=to(xp, np.array([4, -1, 6, 7])),
               dead_mask=to(xp, np.array([False, False, True, False])),
               block_table=to(xp, np.array([[1, 0]])), block_size=4)
    assert np.asarray(cache).tolist() == [
        0, 0, 0, 0, token_map[7], 0, -1, token_map[10]]


def test_chunks_equal_the_whole(table):
    tokens = np.random.default_rng(7).integers(0, VOCAB, 9)
    whole = table.hash(tokens)
    at = 0
    for size in (1, 2, 1, 5):
        before = [tokens[p] if p >= 0 else -1
                  for p in range(at - 1, at - MAX_NGRAM, -1)]
        part = table.hash(tokens[at:at + size],
                          np.arange(at, at + size), lookback_ids=[before])
        assert np.array_equal(part, whole[at:at + size])
        at += size


def test_ids_that_are_none(table, xp):
    for bad in (VOCAB, -1):
        with pytest.raises(errors.InvalidArgument) as caught:
            table.hash(to(xp, np.array([1, bad], dtype=np.int32)))
        assert caught.value.path == "input_ids[1]"
    with pytest.raises(errors.InvalidArgument, match="does not fit"):
        table.hash(to(xp, np.array([1 << 40])))


def test_wrong_arrays(table, xp):
    ids = to(xp, np.zeros((4, COLS), dtype=np.int32))
    out = bf16(xp, np.zeros((4, COLS, DIM)))

    def refused(path, call):
        with pytest.raises(errors.InvalidArgument) as caught:
            call()
        assert caught.value.path == path

    refused("hash_ids", lambda: table.lookup(ids[:, :-1], 3))
    refused("hash_ids", lambda: table.lookup(ids[0], 3))
    refused("hash_ids", lambda: table.lookup(
        to(xp, np.zeros((4, COLS), dtype=np.float32)), 3))
    refused("hash_ids", lambda: table.lookup("ids", 3))
    refused("out", lambda: table.lookup(ids, 3, out=out[:3]))
    refused("out", lambda: table.lookup(
        ids, 3, out=to(xp, np.zeros((4, COLS, DIM), dtype=np.float32))))
    refused("out", lambda: table.lookup(
        ids, 3, out=bf16(xp, np.zeros((4, COLS, 2 * DIM)))[:, :, ::2]))
    refused("positions", lambda: table.hash(ids[0], ids[0, :3]))
    refused("dead_mask", lambda: table.hash(ids[0], dead_mask=ids[0]))
    refused("lookback_dead", lambda: table.hash(
        ids[0], lookback_ids=ids[:1, :2],
        lookback_dead=to(xp, np.zeros((1, 3), dtype=bool))))


def test_read_only_output(table):
    ids = table.hash([1, 2])
    out = table.lookup(ids, 3)
    out.flags.writeable = False
    with pytest.raises(errors.InvalidArgument, match="read-only"):
        table.lookup(ids, 3, out=out)


def test_rows_and_views_are_the_bytes(table):
    for layer in LAYERS:
        count = table.layer(layer).rows
        numbers = [0, 1, 77, count - 1]
        stored = table.rows(numbers, layer)
        codes = table.weight_view(layer, as_torch=False)
        scales = table.scale_view(layer, as_torch=False)
        assert codes.shape == (count, DIM) and not codes.flags.writeable
        assert scales.shape == (count, DIM // 32)
        for place, number in enumerate(numbers):
            record = b"".join(rows_of.record(layer, number, DIM))
            assert stored[place].tobytes() == record
            assert codes[number].tobytes() == record[:DIM]
            assert scales[number].tobytes() == record[DIM:]
    with pytest.raises(errors.InvalidArgument):
        table.rows([count], layer)


def test_views_of_torch(table):
    torch = pytest.importorskip("torch")
    codes, scales = table.weight_view(9), table.scale_view(9)
    assert codes.dtype is torch.float8_e4m3fn
    assert codes.stride() == (table.record_bytes, 1)  # packed
    numbers = [5, 6, 1000]
    decoded = codes[numbers].double() * torch.exp2(
        scales[numbers].double() - 127).repeat_interleave(32, dim=1)
    wanted = rows_of.lookup(9, np.array(numbers)[:, None], DIM)[:, 0]
    assert np.array_equal(decoded.numpy(), wanted)


def mapped_tables():
    return [line for line in pathlib.Path("/proc/self/maps").read_text()
            .splitlines() if "engramd." in line and ".ctl" not in line]


def test_a_view_keeps_its_memory(client):
    """Detaching under a view is harmless; the lease ends with it."""
    gc.collect()
    before = len(mapped_tables())
    table = client.attach("demo")
    view = table.weight_view(3, as_torch=False)
    part = view[10:20]
    table.detach()
    table.detach()
    assert client.table("demo")["leases"] == 1
    del view
    assert part[0].tobytes() == rows_of.record(3, 10, DIM)[0]
    del part
    gc.collect()
    assert len(mapped_tables()) == before
    with pytest.raises(errors.InvalidArgument, match="detached"):
        table.lookup(np.zeros((1, COLS), dtype=np.int32), 3)


def test_a_forgotten_table_is_detached(client):
    client.attach("demo")
    gc.collect()
    assert client.table("demo")["leases"] == 0


def test_closing_a_client_detaches(sidecar, client):
    other = engram_client.Client(sidecar.socket)
    table = other.attach("demo")
    other.close()
    assert client.table("demo")["leases"] == 0
    assert "detached" in repr(table)


def test_one_layer(client):
    with client.attach("demo", layers=[9]) as table:
        ids = table.hash([1, 2, 3])
        assert ids.shape == (3, 1, COLS)
        assert table.lookup(ids).shape == (3, COLS, DIM)
        with pytest.raises(errors.NotFound):
            table.lookup(ids, 3)
    with pytest.raises(errors.NotFound):
        client.attach("demo", layers=[4])


def test_threads_read_at_once(table):
    ids = table.hash(np.arange(400) % VOCAB)
    wanted = table.lookup(ids, 9)
    wrong = []

    def read():
        for _ in range(20):
            if not np.array_equal(table.lookup(ids, 9), wanted):
                wrong.append(1)

    threads = [threading.Thread(target=read, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_gather(table, xp):
    ids = table.hash(to(xp, np.arange(300, dtype=np.int32)))
    with table.gather(slots=2, max_rows=100 * COLS) as gather:
        for layer in LAYERS:
            wanted = floats(table.lookup(ids, layer))
            assert np.array_equal(floats(gather.lookup(ids, layer)), wanted)
            gather.post(ids[:50], layer)
            gather.post(ids[50:100], layer)
            with pytest.raises(errors.Busy):
                gather.post(ids[:50], layer)
            taken = [floats(gather.take()), floats(gather.take())]
            assert np.array_equal(np.concatenate(taken), wanted[:100])
        with pytest.raises(errors.NotFound):
            gather.take()
        counted = gather.counters()
        assert counted.gathered + counted.own == 2 * COLS * 400
    with pytest.raises(errors.InvalidArgument, match="closed"):
        gather.lookup(ids, 3)


def gate_model(hidden, kv, q, k, mask, eps, clamp=1e-6):
    tokens, hc, dim = hidden.shape
    full = np.zeros((tokens, (hc + 1) * dim))
    full[:len(kv)] = kv[:tokens]
    key, value = full[:, :hc * dim].reshape(tokens, hc, dim), full[:, hc * dim:]
    rms = lambda x: 1 / np.sqrt((x * x).mean(-1) + eps)
    dot = (hidden * q * k * key).sum(-1) * rms(hidden) * rms(key) / dim ** 0.5
    root = np.sign(dot) * np.sqrt(np.maximum(abs(dot), clamp))
    gate = 1 / (1 + np.exp(-root))
    shut = np.ones(tokens, dtype=bool)
    shut[:len(kv)] = mask[:tokens]
    return hidden + (gate * shut[:, None])[..., None] * value[:, None]


def some_bf16(rng, *shape):
    return (rng.integers(-200, 200, shape) / 64).astype(np.float32)


@pytest.mark.parametrize("name,shape", [
    ("kv", (7, 5 * 32 - 1)), ("q_weight", (4, 31)), ("k_weight", (3, 32)),
    ("token_mask", (6,)), ("out", (7, 4, 31)), ("out", (6, 4, 32))])
def test_gate_refuses_shapes(xp, name, shape):
    shapes = {"hidden": (7, 4, 32), "kv": (7, 5 * 32), "q_weight": (4, 32),
              "k_weight": (4, 32), "token_mask": (7,), "out": (7, 4, 32),
              name: shape}
    given = {key: to(xp, np.ones(size, bool)) if key == "token_mask" else
             bf16(xp, np.zeros(size)) for key, size in shapes.items()}
    with pytest.raises(errors.InvalidArgument) as caught:
        engram_client.gate(**given)
    assert caught.value.path == name and "wanted" in str(caught.value)


def test_numbers_that_are_none(table, xp):
    given = [bf16(xp, np.zeros(size)) for size in
             ((1, 4, 32), (1, 5 * 32), (4, 32), (4, 32))]
    for more in ({"clamp": "x"}, {"eps": None}):
        with pytest.raises(errors.InvalidArgument) as caught:
            engram_client.gate(*given, **more)
        assert caught.value.path == "eps"
    for size in (1 << 64, "4", 1.5):
        with pytest.raises(errors.InvalidArgument) as caught:
            table.hash(to(xp, np.arange(3, dtype=np.int32)), block_size=size)
        assert caught.value.path == "block_size"


@pytest.mark.parametrize("name,shape", [
    ("positions", (4,)), ("dead_mask", (6,)), ("slot_mapping", (4,)),
    ("lookback_ids", (2, 3)), ("lookback_dead", (1, 2))])
def test_hash_refuses_shapes(table, xp, name, shape):
    arrays = {"positions": np.arange(5), "dead_mask": np.zeros(5, bool),
              "slot_mapping": np.full(5, -1), "lookback_ids":
              np.zeros((1, 3), np.int32),
              "lookback_dead": np.zeros((1, 3), bool)}
    arrays[name] = np.zeros(shape, arrays[name].dtype)
    with pytest.raises(errors.InvalidArgument) as caught:
        table.hash(to(xp, np.arange(5, dtype=np.int32)),
                   **{key: to(xp, array) for key, array in arrays.items()})
    assert caught.value.path in (name, "lookback_dead")


def test_gate(xp):
    """Against float64; a bf16 has 8 bits."""
    rng = np.random.default_rng(8)
    hidden, q, k = (some_bf16(rng, *s) for s in ((7, 4, 32), (4, 32), (4, 32)))
    kv, mask = some_bf16(rng, 5, 5 * 32), rng.random(5) < 0.7
    given = [bf16(xp, a) for a in (hidden, kv, q, k)]
    found = engram_client.gate(*given, token_mask=to(xp, mask))
    wanted = gate_model(hidden, kv, q, k, mask, 1e-20)
    assert np.allclose(floats(found), wanted, rtol=2 ** -7, atol=2 ** -7)
    in_place = engram_client.Table.gate(*given, token_mask=to(xp, mask),
                                        out=given[0])
    assert in_place is given[0]
    assert np.array_equal(floats(in_place), floats(found))
    with pytest.raises(errors.InvalidArgument) as caught:
        engram_client.gate(given[0], given[1][:, :-1], *given[2:])
    assert caught.value.path == "kv"


def test_sp_rows(xp):
    rows = np.arange(3 * 7 * 2 * 8).reshape(3 * 7, 2, 8) % 256
    found = [floats(engram_client.sp_rows(bf16(xp, rows), 7, 5, tp_rank=rank,
                                          tp_size=3)) for rank in range(3)]
    by_rank = rows.reshape(3, 7, 2, 8).transpose(1, 0, 2, 3).reshape(7, 6, 8)
    whole = np.zeros((9, 5, 8))
    whole[:7] = by_rank[:, :5]
    assert np.array_equal(np.concatenate(found), whole)


@pytest.fixture
def child(sidecar):
    """child(code): a Python process that has attached `t`."""
    made = []

    def start(code):
        process = subprocess.Popen(
            [sys.executable, "-c", "import sys, engram_client\n"
             "c = engram_client.Client(sys.argv[1])\n"
             "t = c.attach('demo')\n" + code, sidecar.socket],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT / "clients/python")})
        made.append(process)
        return process

    yield start
    for process in made:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def shares(pid):
    """Rss, Pss and private KiB of the table's mappings."""
    total, inside = {"Rss": 0, "Pss": 0, "Private_Clean": 0,
                     "Private_Dirty": 0}, False
    for line in pathlib.Path(f"/proc/{pid}/smaps").read_text().splitlines():
        word = line.split()[0]
        if "-" in word and not word.endswith(":"):
            inside = "engramd." in line and ".ctl" not in line
        elif inside and word[:-1] in total:
            total[word[:-1]] += int(line.split()[1])
    return total


def test_two_processes_share_one_copy(child, table):
    """They read the same rows, and hold them in equal parts with engramd."""
    code = ("v = [t.weight_view(l, as_torch=False).sum(dtype='uint64')"
            " for l in t.layers]\n"
            "print(*v, flush=True)\n"
            "sys.stdin.read()\n")
    children = [child(code), child(code)]
    said = [process.stdout.readline() for process in children]
    wanted = [table.weight_view(layer, as_torch=False).sum(dtype="uint64")
              for layer in LAYERS]
    assert said == [" ".join(map(str, wanted)) + "\n"] * 2
    # engramd, this process and the two
    for process in children:
        held = shares(process.pid)
        assert held["Rss"] > 0
        assert held["Private_Clean"] == held["Private_Dirty"] == 0
        assert held["Pss"] == pytest.approx(held["Rss"] / 4, rel=0.05)


def test_a_killed_process_lets_go(child, client):
    process = child("print(t.generation, flush=True)\nsys.stdin.read()\n")
    assert process.stdout.readline() == "1\n"
    assert client.table("demo")["leases"] == 1
    process.kill()
    process.wait()
    import engramd

    engramd.until(lambda: client.table("demo")["leases"] == 0, "lease ends")


def test_a_forked_child_can_not_use_it(table):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            table.lookup(np.zeros((1, COLS), dtype=np.int32), 3)
        except errors.InvalidArgument:
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert table.lookup(np.zeros((1, COLS), dtype=np.int32), 3).any()
