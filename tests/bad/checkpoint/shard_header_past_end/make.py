# SPDX-License-Identifier: Apache-2.0
"""The header is longer than the file."""


def make(c):
    c.lengths[c.first] = 1 << 40
