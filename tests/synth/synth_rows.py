# SPDX-License-Identifier: Apache-2.0
"""The rows that engram-synth writes, as synth_rows.h has them."""
MASK = (1 << 64) - 1


def mix(x):
    """SplitMix64."""
    x = x + 0x9e3779b97f4a7c15 & MASK
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9 & MASK
    x = (x ^ x >> 27) * 0x94d049bb133111eb & MASK
    return x ^ x >> 31


def record(layer, row, dim):
    """(codes, scales) of a row."""
    key = layer << 48 | row << 12
    codes = b"".join(mix(key | word).to_bytes(8, "little")
                     for word in range(dim // 8))
    codes = bytes(c ^ 0x40 if c & 0x7f == 0x7f else c for c in codes)
    return codes, bytes(112 + (mix(key | 0x800 | block) & 15)
                        for block in range(dim // 32))
