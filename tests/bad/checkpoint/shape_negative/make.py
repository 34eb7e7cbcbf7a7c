# SPDX-License-Identifier: Apache-2.0
"""A dimension is negative."""


def make(c):
    c.tensor(c.scale(1))["shape"] = [-60, -2]
