# SPDX-License-Identifier: Apache-2.0
"""What a looked-up row is, in NumPy: fp8 e4m3 codes times ue8m0 scales,
rounded to bf16.  Slow and obvious; the variants are compared with it."""
import numpy as np

BF16_NAN = 0x7FFF


def _e4m3_values():
    values = np.empty(256, np.float32)
    for code in range(256):
        exponent, mantissa = code >> 3 & 15, code & 7
        if code & 0x7F == 0x7F:
            value = np.nan
        elif exponent:
            value = (1 + mantissa / 8) * 2.0 ** (exponent - 7)
        else:
            value = mantissa * 2.0 ** -9
        values[code] = -value if code & 0x80 else value
    return values


E4M3 = _e4m3_values()


def bf16_of(values):
    """fp32 to the bits of bf16: to nearest, ties to even, one NaN."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (bits.astype(np.uint64) + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(values), BF16_NAN, rounded).astype(np.uint16)


def decode(codes, scales, block=32):
    """Rows of codes [n, dim] and scales [n, dim / block], as bf16 bits."""
    scale = (scales.astype(np.uint32) << 23).view(np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        return bf16_of(E4M3[codes] * np.repeat(scale, block, axis=1))


def is_nan(bits):
    return (bits & 0x7FFF) > 0x7F80


def differ(got, want, any_nan=False):
    """Which bf16 differ; with any_nan, one NaN is as good as another."""
    wrong = got != want
    if any_nan:
        wrong &= ~(is_nan(got) & is_nan(want))
    return wrong
