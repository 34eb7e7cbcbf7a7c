# SPDX-License-Identifier: Apache-2.0
"""torch.compile on the CPU; test_python_gpu.py does it on a GPU."""
import gc

import numpy as np
import pytest

import engram_client
from python_setting import DIM
from engram_client import errors

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.skipif(
    not hasattr(torch, "compiler") or
    not hasattr(torch.compiler, "is_compiling"),
    reason="a torch before 2.4 has no torch.compiler.is_compiling")


@pytest.fixture(params=["aot_eager", "inductor"])
def compiled(request):
    """torch.compile that fails where it would leave the graph."""
    if request.param == "inductor":
        import shutil

        if not shutil.which("g++"):
            pytest.skip("inductor needs g++")
    torch._dynamo.reset()
    return lambda f: torch.compile(f, fullgraph=True, backend=request.param)


def test_a_layer_is_one_graph(table, compiled):
    def layer(tokens, hidden, weight, q, k):
        ids = table.hash(tokens)
        rows = table.lookup(ids, 9)
        kv = rows.flatten(-2).float() @ weight
        return ids, rows, table.gate(hidden, kv.bfloat16(), q, k)

    generator = torch.Generator().manual_seed(1)
    tokens = torch.arange(12, dtype=torch.int32)
    hidden = torch.randn(12, 4, 8, generator=generator).bfloat16()
    weight = torch.randn(table.local_heads * DIM, 5 * 8, generator=generator)
    q, k = torch.randn(2, 4, 8, generator=generator).bfloat16()
    wanted = layer(tokens, hidden, weight, q, k)
    found = compiled(layer)(tokens, hidden, weight, q, k)
    assert torch.equal(found[0], wanted[0])
    assert torch.equal(found[1], wanted[1])
    assert torch.allclose(found[2].float(), wanted[2].float(), rtol=0.02,
                          atol=0.02)


def test_outputs_of_ones_own(table, compiled):
    """Written to in place, though the compiler works on copies of its own."""
    ids = table.hash(torch.arange(6, dtype=torch.int32))
    wanted = table.lookup(ids, 3)
    out = torch.full_like(wanted, 7)

    def lookup(ids, out):
        table.lookup(ids, 3, out=out)
        return out + 1

    found = compiled(lookup)(ids, out)
    assert torch.equal(out, wanted)
    assert torch.equal(found, wanted + 1)


def test_the_slot_cache_is_written(table, compiled):
    def step(tokens, cache, slots, blocks):
        return table.hash(tokens, slot_cache=cache, slot_mapping=slots,
                          block_table=blocks, block_size=4)

    tokens = torch.arange(4, dtype=torch.int32)
    slots = torch.tensor([4, 5, -1, 7])
    blocks = torch.tensor([[1, 0]], dtype=torch.int32)
    caches = torch.zeros(2, 8, dtype=torch.int32).unbind()
    wanted = step(tokens, caches[0], slots, blocks)
    found = compiled(step)(tokens, caches[1].clone(), slots, blocks)
    assert torch.equal(found, wanted)
    one = caches[1].clone()
    compiled(step)(tokens, one, slots, blocks)
    assert torch.equal(one, caches[0])


def test_any_number_of_tokens(table, compiled):
    lookup = compiled(lambda tokens: table.lookup(table.hash(tokens), 3))
    for count in (1, 5, 17, 64):
        tokens = torch.arange(count, dtype=torch.int32)
        torch._dynamo.mark_dynamic(tokens, 0) if count > 1 else None
        assert torch.equal(lookup(tokens),
                           table.lookup(table.hash(tokens), 3))


def test_operators_say_what_they_write(table):
    ids = table.hash(torch.arange(6, dtype=torch.int32))
    out = table.lookup(ids, 3)
    torch.library.opcheck(torch.ops.engram.lookup, (
        ids, out, table._number, 3, True))
    hidden = torch.randn(6, 4, 8).bfloat16()
    torch.library.opcheck(torch.ops.engram.gate, (
        hidden, torch.randn(6, 40).bfloat16(), *torch.randn(2, 4, 8)
        .bfloat16(), None, torch.empty_like(hidden), 1e-6, 1e-6))


def test_a_compiled_function_that_outlives_its_table(client):
    table = client.attach("demo")
    number = table._number
    ids = table.hash(torch.arange(6, dtype=torch.int32))
    out = table.lookup(ids, 3)
    table.detach()
    del table
    gc.collect()
    with pytest.raises(errors.InvalidArgument, match="outlived"):
        torch.ops.engram.lookup(ids, out, number, 3, True)


def test_numpy_beside_torch(table):
    """Each gets what it gave."""
    tokens = np.arange(6, dtype=np.int32)
    ids = table.hash(tokens)
    assert isinstance(ids, np.ndarray)
    same = table.hash(torch.from_numpy(tokens))
    assert isinstance(same, torch.Tensor)
    rows = engram_client.float32(table.lookup(ids, 3))
    assert np.array_equal(rows, table.lookup(same, 3).float().numpy())
