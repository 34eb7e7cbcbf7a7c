# SPDX-License-Identifier: Apache-2.0
"""More dimensions than are accepted."""


def make(c):
    c.tensor(c.scale(1))["shape"] = [1] * 9
