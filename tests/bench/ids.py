# SPDX-License-Identifier: Apache-2.0
"""Row numbers to look up, drawn on the GPU before anything is timed."""

# Odd, and not near a simple fraction of any table's size.
SPREAD = 0x2545F491


def _coprime(rows):
    """A multiplier that permutes the row numbers of a table."""
    import math

    factor = SPREAD % rows
    while math.gcd(factor, rows) != 1:
        factor += 1
    return factor


def uniform(rows, shape, generator, out):
    import torch

    torch.randint(0, rows, shape, dtype=torch.int32, device=out.device,
                  generator=generator, out=out)


def zipf(rows, shape, generator, out):
    """Zipf with exponent 1: rank r with a probability of about 1 / r, by
    inversion, the ranks then spread over the table."""
    import torch

    draw = torch.rand(shape, dtype=torch.float64, device=out.device,
                      generator=generator)
    rank = (rows + 1.0) ** draw - 1
    rank = rank.to(torch.int64).clamp_(0, rows - 1)
    out.copy_((rank * _coprime(rows) + SPREAD % rows) % rows)


DISTRIBUTIONS = {"uniform": uniform, "zipf": zipf}


def make_sets(distribution, rows, count, tokens, heads, seed):
    """int32 [count, tokens, heads]: a set for each launch, none used twice."""
    import torch

    generator = torch.Generator(device="cuda")
    generator.manual_seed(seed)
    sets = torch.empty((count, tokens, heads), dtype=torch.int32,
                       device="cuda")
    for out in sets:
        DISTRIBUTIONS[distribution](rows, (tokens, heads), generator, out)
    return sets
