# SPDX-License-Identifier: Apache-2.0
"""A dtype is a number."""


def make(c):
    c.tensor(c.scale(1))["dtype"] = 8
