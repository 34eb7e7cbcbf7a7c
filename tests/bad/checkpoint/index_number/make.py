# SPDX-License-Identifier: Apache-2.0
"""A file name is a number."""


def make(c):
    c.index["weight_map"][c.weight(1)] = 7
