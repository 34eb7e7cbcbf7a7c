# SPDX-License-Identifier: Apache-2.0
"""Offsets that do not fit 64 bits."""


def make(c):
    c.tensor(c.scale(1))["offsets"] = [0, 1 << 64]
