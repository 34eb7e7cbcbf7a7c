# SPDX-License-Identifier: Apache-2.0
"""A tensor ends before it begins."""


def make(c):
    c.tensor(c.weight(1))["offsets"] = [3877, 37]
