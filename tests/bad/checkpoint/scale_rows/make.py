# SPDX-License-Identifier: Apache-2.0
"""Fewer scales than rows."""


def make(c):
    c.remove(c.scale(1))
    c.add(c.first, c.scale(1), "F8_E8M0", [59, 2])
