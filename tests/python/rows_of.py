# SPDX-License-Identifier: Apache-2.0
"""What a table that engram-synth wrote must answer, from its formula and the
format of a row; nothing of the client is used."""
import numpy as np

from kinds import e4m3
from synth_rows import record

VALUES = np.array([0.0 if code & 0x7f == 0x7f else e4m3(code)
                   for code in range(256)])


def row(layer, number, dim):
    """As float64; exact, and bf16 holds it exactly."""
    codes, scales = record(layer, number, dim)
    scale = np.repeat([2.0 ** (s - 127) for s in scales], 32)
    return VALUES[np.frombuffer(codes, dtype=np.uint8)] * scale


def lookup(layer, ids, dim, rows=None):
    """Of ids [T, heads]; zeros for those outside `rows`."""
    out = np.zeros((*ids.shape, dim))
    for place in np.ndindex(ids.shape):
        number = int(ids[place])
        if number >= 0 and (rows is None or rows[0] <= number < rows[1]):
            out[place] = row(layer, number, dim)
    return out
