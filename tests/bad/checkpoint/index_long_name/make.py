# SPDX-License-Identifier: Apache-2.0
"""A file name of 300 bytes."""


def make(c):
    c.index["weight_map"][c.weight(1)] = "a" * 300
