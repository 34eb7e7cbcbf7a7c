# SPDX-License-Identifier: Apache-2.0
"""A tensor ends past the file."""


def make(c):
    c.tensor(c.scale(1))["offsets"] = [3877, 999999]
