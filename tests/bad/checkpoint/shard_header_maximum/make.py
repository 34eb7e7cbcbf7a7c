# SPDX-License-Identifier: Apache-2.0
"""The length of the header is 2^64 - 1."""


def make(c):
    c.lengths[c.first] = (1 << 64) - 1
