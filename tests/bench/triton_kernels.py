# SPDX-License-Identifier: Apache-2.0
"""The plain Triton versions that ours are measured against: what one would
write from the description in an afternoon, with wide loads and no tricks."""
import triton
import triton.language as tl

TILE = 16


@triton.jit
def gather_kernel(codes, scales, ids, out, num_ids, num_rows,
                  DIM: tl.constexpr, BLOCK: tl.constexpr,
                  ROWS: tl.constexpr):
    """Each program takes every num_programs-th tile of ROWS rows."""
    groups: tl.constexpr = DIM // BLOCK
    column = tl.arange(0, DIM)
    group = tl.arange(0, groups)
    step = tl.num_programs(0) * ROWS
    for first in range(tl.program_id(0) * ROWS, num_ids, step):
        place = first + tl.arange(0, ROWS)
        asked = place < num_ids
        row = tl.load(ids + place, mask=asked, other=-1).to(tl.int64)
        there = (row >= 0) & (row < num_rows)
        code = tl.load(codes + row[:, None] * DIM + column[None, :],
                       mask=there[:, None], other=0.0)
        exponent = tl.load(scales + row[:, None] * groups + group[None, :],
                           mask=there[:, None], other=0)
        # The byte is the exponent field of an fp32.
        scale = (exponent.to(tl.int32) << 23).to(tl.float32, bitcast=True)
        value = tl.reshape(code.to(tl.float32), (ROWS, groups, BLOCK))
        value = tl.reshape(value * scale[:, :, None], (ROWS, DIM))
        tl.store(out + place.to(tl.int64)[:, None] * DIM + column[None, :],
                 value.to(tl.bfloat16), mask=asked[:, None])


@triton.jit
def gate_kernel(hidden, kv, q_weight, k_weight, out, eps, clamp,
                COPIES: tl.constexpr, DIM: tl.constexpr,
                WIDTH: tl.constexpr):
    """A program for each token and copy; contiguous arrays, no mask."""
    token = tl.program_id(0).to(tl.int64)
    copy = tl.program_id(1)
    column = tl.arange(0, WIDTH)
    inside = column < DIM
    place = (token * COPIES + copy) * DIM + column
    pair = token * (COPIES + 1) * DIM
    h = tl.load(hidden + place, mask=inside, other=0.0).to(tl.float32)
    key = tl.load(kv + pair + copy * DIM + column, mask=inside,
                  other=0.0).to(tl.float32)
    value = tl.load(kv + pair + COPIES * DIM + column, mask=inside,
                    other=0.0).to(tl.float32)
    q = tl.load(q_weight + copy * DIM + column, mask=inside,
                other=0.0).to(tl.float32)
    k = tl.load(k_weight + copy * DIM + column, mask=inside,
                other=0.0).to(tl.float32)
    dot = tl.sum(h * q * k * key, axis=0)
    dot = dot / tl.sqrt(tl.sum(h * h, axis=0) / DIM + eps)
    dot = dot / tl.sqrt(tl.sum(key * key, axis=0) / DIM + eps)
    dot = dot / tl.sqrt(DIM * 1.0)
    root = tl.sqrt(tl.maximum(tl.abs(dot), clamp))
    gate = tl.sigmoid(tl.where(dot < 0, -root, root))
    tl.store(out + place, (h + gate * value).to(tl.bfloat16), mask=inside)


def gather(codes, scales, ids, out, programs):
    """ids int32 [...], contiguous; out bf16 [ids, DIM]; codes fp8 and scales
    uint8 [rows, ..]."""
    rows, dim = codes.shape
    tiles = triton.cdiv(ids.numel(), TILE)
    gather_kernel[(min(programs, tiles),)](
        codes, scales, ids, out, ids.numel(), rows, DIM=dim,
        BLOCK=dim // scales.shape[1], ROWS=TILE)


def gate(hidden, kv, q_weight, k_weight, out, eps=1e-6, clamp=1e-6):
    tokens, copies, dim = hidden.shape
    gate_kernel[(tokens, copies)](
        hidden, kv, q_weight, k_weight, out, eps, clamp, COPIES=copies,
        DIM=dim, WIDTH=triton.next_power_of_2(dim), num_warps=8)
