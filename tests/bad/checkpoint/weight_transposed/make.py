# SPDX-License-Identifier: Apache-2.0
"""Codes with rows and columns exchanged."""


def make(c):
    c.remove(c.weight(1))
    c.add(c.first, c.weight(1), "F8_E4M3", [64, 60])
