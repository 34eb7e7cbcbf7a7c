# SPDX-License-Identifier: Apache-2.0
"""CUDA tensors on a GPU: the rows of the CPU, in streams, graphs and compiled
functions, and a whole layer against float64."""
import gc

import numpy as np
import pytest

import engram_client
import engramd
import rows_of
from python_setting import BUILD, COLS, DIM, LAYERS, SHAPE, VOCAB, start
from engram_client import errors
from test_python_table import floats, gate_model, mapped_tables

torch = pytest.importorskip("torch")

if not torch.cuda.is_available():
    pytest.skip("torch sees no GPU here", allow_module_level=True)
if not (BUILD / "lib/libengram_cuda.so").exists():
    pytest.skip("libengram_cuda is not built", allow_module_level=True)

CUDA = "cuda"


@pytest.fixture
def gpu(client):
    with client.attach("demo", device=CUDA) as table:
        yield table
        torch.cuda.synchronize()


@pytest.fixture
def tokens():
    generator = torch.Generator().manual_seed(2)
    return torch.randint(VOCAB, (40,), generator=generator,
                         dtype=torch.int32)


def batch(tokens, device=CUDA):
    """tokens, positions and bounds of one request, on the device."""
    count = len(tokens)
    return (tokens.to(device), torch.arange(count, device=device),
            torch.tensor([0, count], dtype=torch.int32, device=device))


def test_where_it_is(gpu):
    assert gpu.device == torch.cuda.current_device()
    assert gpu.progress().ready and gpu.progress().total_bytes > 0
    assert f"cuda:{gpu.device}" in repr(gpu)


def test_hash_and_lookup(gpu, table, tokens):
    ids = gpu.hash(tokens.to(CUDA))
    assert ids.is_cuda and torch.equal(ids.cpu(), table.hash(tokens))
    for index, layer in enumerate(LAYERS):
        for given in (ids, ids[:, index], ids[::3, index]):
            for background in (True, False):
                found = gpu.lookup(given, layer, background=background)
                assert torch.equal(found.cpu(),
                                   table.lookup(given.cpu(), layer))
    found = gpu.lookup(ids, 9)
    assert np.array_equal(floats(found), rows_of.lookup(
        9, ids[:, 1].cpu().numpy(), DIM))


def test_hash_of_two_requests(gpu, table, tokens):
    """With everything a batch can have."""
    dead = torch.rand(40) < 0.1
    more = {"dead_mask": dead,
            "lookback_ids": torch.tensor([[5, -1], [9, 10]],
                                         dtype=torch.int32),
            "lookback_dead": torch.tensor([[False, False], [True, False]]),
            "slot_cache": torch.randint(300, (64,), dtype=torch.int32),
            # no slot twice: which write is last is not defined
            "slot_mapping": torch.arange(40) - 1,
            "block_table": torch.randperm(16).reshape(2, 8).int()}
    positions = torch.cat([torch.arange(3, 23), torch.arange(8, 28)])
    bounds = torch.tensor([0, 20, 40], dtype=torch.int32)
    on_gpu = {name: array.to(CUDA) for name, array in more.items()}
    wanted = table.hash(tokens, positions, bounds, block_size=4, **more)
    found = gpu.hash(tokens.to(CUDA), positions.to(CUDA), bounds.to(CUDA),
                     block_size=4, **on_gpu)
    assert torch.equal(found.cpu(), wanted)
    assert torch.equal(on_gpu["slot_cache"].cpu(), more["slot_cache"])


def test_counters(gpu):
    gpu.hash(torch.tensor([VOCAB, 3, -1], dtype=torch.int32, device=CUDA))
    gpu.lookup(torch.full((2, COLS), -1, dtype=torch.int32, device=CUDA), 3)
    assert gpu.counters() == (2 * COLS, 2)


def test_placements(client, table, tokens):
    ids = table.hash(tokens)
    with client.attach("demo", device=CUDA, placement="device") as copied:
        assert torch.equal(copied.lookup(ids.to(CUDA), 3).cpu(),
                           table.lookup(ids, 3))
        with pytest.raises(errors.Unsupported):
            copied.weight_view(3)
        torch.cuda.synchronize()


@pytest.mark.parametrize("size", [2, 4])
def test_ranks(client, table, tokens, size):
    ids = table.hash(tokens)
    parts = []
    for rank in range(size):
        with client.attach("demo", device=CUDA, tp_rank=rank,
                           tp_size=size) as part:
            parts.append(part.lookup(ids.to(CUDA), 9).cpu())
    joined = torch.cat(parts, dim=1)
    assert torch.equal(joined[:, :COLS], table.lookup(ids, 9))
    assert not joined[:, COLS:].any()


@pytest.mark.parametrize("given", [False, True])
def test_streams(gpu, table, tokens, given):
    """Work goes to the current stream, or to the one that is given: behind
    what is in it, without waiting for it."""
    ids = table.hash(tokens)
    late = torch.full_like(ids, -1).to(CUDA)
    right = ids.to(CUDA)
    gpu.lookup(right, 3)  # kernels are loaded when they are first used
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(2_000_000_000)  # a second
        late.copy_(right)
        rows = None if given else gpu.lookup(late, 3)
    if given:
        rows = gpu.lookup(late, 3, stream=stream)
    assert not stream.query(), "the lookup waited for the stream"
    stream.synchronize()
    assert torch.equal(rows.cpu(), table.lookup(ids, 3))
    address = gpu.lookup(late, 3, stream=stream.cuda_stream)
    stream.synchronize()
    assert torch.equal(address, rows)


def test_graph(gpu, table, tokens):
    """Captured once, replayed with other tokens; no call waits or copies."""
    ids_in, positions, bounds = batch(tokens)
    out = torch.empty(40, COLS, DIM, dtype=torch.bfloat16, device=CUDA)

    def step():
        hashed = gpu.hash(ids_in, positions, bounds)
        gpu.lookup(hashed, 9, out=out)
        return hashed, gpu.lookup(hashed, 3)

    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        hashed, other = step()
    for turn in range(5):
        new = (tokens + 17 * turn) % VOCAB
        ids_in.copy_(new)
        graph.replay()
        torch.cuda.synchronize()
        wanted = table.hash(new)
        assert torch.equal(hashed.cpu(), wanted)
        assert torch.equal(out.cpu(), table.lookup(wanted, 9))
        assert torch.equal(other.cpu(), table.lookup(wanted, 3))


def test_defaults_can_be_captured(gpu, table, tokens):
    """Positions and bounds that are not given are made on the device."""
    ids_in = tokens.to(CUDA)
    gpu.hash(ids_in)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        hashed = gpu.hash(ids_in)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(hashed.cpu(), table.hash(tokens))


def test_attach_while_another_stream_is_captured(gpu, client, tokens):
    """As an engine does that starts beside one that captures."""
    ids = tokens.to(CUDA)
    gpu.lookup(gpu.hash(ids), 3)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        other = client.attach("demo", device=CUDA)
        rows = gpu.lookup(gpu.hash(ids), 3)
    graph.replay()
    assert torch.equal(rows, other.lookup(other.hash(ids), 3))
    torch.cuda.synchronize()
    other.detach()


def layer_of(table, weight, q, k):
    def layer(tokens, positions, bounds, hidden, mask):
        ids = table.hash(tokens, positions, bounds)
        rows = table.lookup(ids, 9)
        kv = rows.flatten(-2) @ weight
        return table.gate(hidden, kv, q, k, token_mask=mask)

    return layer


@pytest.fixture
def layer(gpu):
    """(function, weight, q, k, hidden, mask) of a whole layer."""
    generator = torch.Generator().manual_seed(3)

    def random(*shape):
        return torch.randn(shape, generator=generator).bfloat16().to(CUDA)

    weight = random(COLS * DIM, 5 * 64) / 16
    q, k = random(4, 64), random(4, 64)
    mask = torch.rand(40, generator=generator).to(CUDA) < 0.8
    return (layer_of(gpu, weight, q, k), weight, q, k, random(40, 4, 64),
            mask)


def reference(table, tokens, layer):
    """In float64, with NumPy: hash of the CPU, rows by their formula."""
    _, weight, q, k, hidden, mask = layer
    ids = table.hash(tokens)[:, 1].numpy()
    rows = rows_of.lookup(9, ids, DIM).reshape(len(tokens), -1)
    numbers = [array.double().cpu().numpy()
               for array in (hidden, weight, q, k)]
    kv = rows @ numbers[1]
    return gate_model(numbers[0], kv, numbers[2], numbers[3],
                      mask.cpu().numpy(), 1e-20)


def close(found, wanted):
    """The kv of the layer is bf16, and so is what comes out."""
    error = np.abs(floats(found) - wanted)
    return (error <= 2 ** -6 * np.maximum(1, np.abs(wanted))).all()


def test_layer(gpu, table, tokens, layer):
    function, *_, hidden, mask = layer
    assert close(function(*batch(tokens), hidden, mask),
                 reference(table, tokens, layer))


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
def test_compiled_layer(gpu, table, tokens, layer, mode):
    """One graph of torch.compile; with its own CUDA graphs too."""
    function, *_, hidden, mask = layer
    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, mode=mode)
    for turn in range(4):
        new = (tokens + 31 * turn) % VOCAB
        found = compiled(*batch(new), hidden, mask).clone()
        assert close(found, reference(table, new, layer)), turn
    torch._dynamo.reset()
    gc.collect()


def test_compiled_lookup_is_exact(gpu, table, tokens):
    torch._dynamo.reset()
    lookup = torch.compile(lambda ids, out: gpu.lookup(ids, 3, out=out),
                           fullgraph=True)
    ids = table.hash(tokens)
    out = torch.empty(40, COLS, DIM, dtype=torch.bfloat16, device=CUDA)
    lookup(ids.to(CUDA), out)
    assert torch.equal(out.cpu(), table.lookup(ids, 3))


def test_views_are_no_copies(gpu, table):
    """As the GPU sees the registered memory, at its host address."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    codes, scales = gpu.weight_view(9), gpu.scale_view(9)
    assert codes.is_cuda and codes.dtype is torch.float8_e4m3fn
    assert torch.cuda.memory_allocated() == before
    here = gpu.weight_view(9, as_torch=False)
    assert codes.data_ptr() == here.ctypes.data
    numbers = torch.tensor([5, 6, 1000], device=CUDA)
    decoded = codes.view(torch.uint8)[numbers].view(
        torch.float8_e4m3fn).double() * torch.exp2(
        scales[numbers].double() - 127).repeat_interleave(32, dim=1)
    wanted = rows_of.lookup(9, numbers.cpu().numpy()[:, None], DIM)[:, 0]
    assert np.array_equal(decoded.cpu().numpy(), wanted)


@pytest.mark.parametrize("placement,path", [
    ("registered", "uva"), ("registered", "host"), ("registered", "hybrid"),
    ("registered", "auto"), ("host", "host")])
def test_gather(client, table, tokens, placement, path):
    ids = table.hash(tokens)
    on_gpu = ids.to(CUDA)
    out = torch.empty(40, COLS, DIM, dtype=torch.bfloat16, device=CUDA)
    with client.attach("demo", device=CUDA, placement=placement) as gpu:
        with gpu.gather(max_rows=4096) as gather:
            assert torch.equal(gather.lookup(on_gpu, 9, path=path).cpu(),
                               table.lookup(ids, 9))
            gather.lookup(on_gpu, 3, path=path, out=out)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                gather.lookup(on_gpu, 3, path=path, out=out)
            for turn in range(3):
                new = table.hash((tokens + turn) % VOCAB)
                on_gpu.copy_(new)
                gather.wake()
                graph.replay()
                assert torch.equal(out.cpu(), table.lookup(new, 3))
            assert gather.counters().failed == 0


@pytest.mark.parametrize("placement", ["registered", "host"])
def test_prefetch(client, table, tokens, placement):
    """Ids of the host; rows on the device, by the stream that takes them."""
    side = torch.cuda.Stream()
    with client.attach("demo", device=CUDA, placement=placement) as gpu:
        with gpu.gather(max_rows=4096, prefetch=2) as gather:
            for turn in range(4):
                ids = gpu.hash((tokens + turn) % VOCAB)
                assert not ids.is_cuda
                gather.post(ids, 9)
                gather.post(ids[:7, 0], 3)
                with pytest.raises(errors.Busy):
                    gather.post(ids, 9)
                first = gather.take(stream=side)
                side.synchronize()
                assert torch.equal(first.cpu(), table.lookup(ids, 9))
                out = torch.empty(7, COLS, DIM, dtype=torch.bfloat16,
                                  device=CUDA)
                assert gather.take(out) is out
                assert torch.equal(out.cpu(), table.lookup(ids[:7], 3))
            with pytest.raises(errors.InvalidArgument) as caught:
                gather.post(ids.to(CUDA), 9)
            assert caught.value.path == "hash_ids"
            gather.post(ids, 9)
            graph = torch.cuda.CUDAGraph()
            with pytest.raises(errors.EngramError):
                with torch.cuda.graph(graph):
                    gather.take()
            assert torch.equal(gather.take().cpu(), table.lookup(ids, 9))
            assert gather.counters().failed == 0


@pytest.mark.parametrize("placement", ["registered", "device"])
def test_a_captured_graph_follows_a_reload(checkpoint, tmp_path, tokens,
                                           placement):
    """Replays before the change give the old rows, those after it the new,
    without a pause between."""
    other = engramd.synth(tmp_path / "other", *SHAPE, "--engram-vocab-size",
                          "1000", "--seed", "1")
    server = start(tmp_path, {"demo": checkpoint})
    try:
        with engram_client.Client(server.socket) as client:
            client.load("demo")
            gpu = client.attach("demo", device=CUDA, placement=placement)
            cpu = client.attach("demo")
            ids = cpu.hash(tokens)
            on_gpu = ids.to(CUDA)
            out = torch.empty(40, COLS, DIM, dtype=torch.bfloat16,
                              device=CUDA)
            gpu.lookup(on_gpu, 9, out=out)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                gpu.lookup(on_gpu, 9, out=out)
            before = cpu.lookup(ids, 9)
            client.reload("demo", checkpoint=str(other))
            assert gpu.prepare(600) == 2
            graph.replay()
            first = out.clone()
            assert gpu.refresh(2)
            graph.replay()
            second = out.clone()
            torch.cuda.synchronize()
            cpu.refresh()
            after = cpu.lookup(ids, 9)
            assert torch.equal(first.cpu(), before)
            assert torch.equal(second.cpu(), after)
            assert not torch.equal(before, after)
            assert (gpu.generation, gpu.content_id) == (2, cpu.content_id)
            torch.cuda.synchronize()
            gpu.detach()
            cpu.detach()
    finally:
        server.stop()


def test_detached_memory_is_unmapped(client):
    gc.collect()
    before = len(mapped_tables())
    table = client.attach("demo", device=CUDA)
    view = table.weight_view(3)
    table.detach()
    assert len(mapped_tables()) > before
    del view
    gc.collect()
    assert len(mapped_tables()) == before


def test_mistakes(gpu, table, tokens):
    ids = table.hash(tokens)
    with pytest.raises(errors.InvalidArgument, match="on one device"):
        gpu.lookup(ids, 3, out=torch.empty(40, COLS, DIM, device=CUDA,
                                           dtype=torch.bfloat16))
    with pytest.raises(errors.InvalidArgument, match="attach the table with"):
        table.lookup(ids.to(CUDA), 3)
    with pytest.raises(errors.InvalidArgument, match="int32 wanted"):
        gpu.lookup(ids.to(CUDA).long(), 3)
    # the device is as good as before
    assert torch.equal(gpu.lookup(ids.to(CUDA), 3).cpu(),
                       table.lookup(ids, 3))
