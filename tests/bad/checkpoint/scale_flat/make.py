# SPDX-License-Identifier: Apache-2.0
"""Scales in one dimension."""


def make(c):
    c.remove(c.scale(1))
    c.add(c.first, c.scale(1), "F8_E8M0", [120])
