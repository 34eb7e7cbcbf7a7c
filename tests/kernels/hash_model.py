# SPDX-License-Identifier: Apache-2.0
"""The n-gram hash as its description says it, one token at a time, in
Python's own integers.  Slow and obvious: the kernels are checked against it.
"""
from dataclasses import dataclass, field

DEAD = -1


@dataclass
class Request:
    """A request's chunk: what an n-gram ending in it can see."""
    start: int                  # position of the first token
    ids: list                   # raw ids of the chunk
    dead: list                  # whether each takes part in no n-gram
    window: list = field(default_factory=list)  # newest first, -1 unknown
    window_dead: list = field(default_factory=list)
    cached: list | None = None  # by position, compressed ids or DEAD


def source(request, index, back, token_map, pad):
    """The compressed id `back` places before token `index`, or DEAD."""
    if index - back >= 0:
        if request.dead[index - back]:
            return DEAD
        return token_map[request.ids[index - back]]
    position = request.start + index - back
    if position < 0:
        return DEAD
    place = back - index - 1
    if place < len(request.window) and request.window[place] >= 0:
        if request.window_dead[place]:
            return DEAD
        return token_map[request.window[place]]
    return pad if request.cached is None else request.cached[position]


def truncated(value, prime):
    """C's remainder of an int64."""
    rest = abs(value) % prime
    return -rest if value < 0 else rest


def hash_token(request, index, layer, token_map, pad, cuts=()):
    """All columns of one token; layer = (multipliers, primes[ngram][head],
    offsets[ngram][head])."""
    multipliers, primes, offsets = layer
    row, rolling, blocked = [], 0, False
    for back, multiplier in enumerate(multipliers):
        value = source(request, index, back, token_map, pad)
        # A token that ends a text is dead to those after it.
        blocked = blocked or value == DEAD or (back > 0 and value in cuts)
        rolling ^= (pad if blocked else value) * multiplier
        if back:
            row += [truncated(rolling, prime) + offset for prime, offset
                    in zip(primes[back - 1], offsets[back - 1])]
    return row
