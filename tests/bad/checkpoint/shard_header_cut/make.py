# SPDX-License-Identifier: Apache-2.0
"""The header is cut off."""


def make(c):
    c.lengths[c.first] = 100
