# SPDX-License-Identifier: Apache-2.0
"""A file without a name."""


def make(c):
    c.index["weight_map"][c.weight(1)] = ""
