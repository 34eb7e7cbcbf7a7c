# SPDX-License-Identifier: Apache-2.0
"""A shape whose product overflows."""


def make(c):
    c.tensor(c.scale(1))["shape"] = [1 << 40, 1 << 40]
