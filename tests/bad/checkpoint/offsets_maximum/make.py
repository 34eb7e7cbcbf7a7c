# SPDX-License-Identifier: Apache-2.0
"""An offset of 2^63 - 1."""


def make(c):
    c.tensor(c.scale(1))["offsets"] = [0, (1 << 63) - 1]
