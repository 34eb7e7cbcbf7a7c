# SPDX-License-Identifier: Apache-2.0
"""The header has length 0."""


def make(c):
    c.lengths[c.first] = 0
