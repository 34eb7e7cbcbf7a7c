# SPDX-License-Identifier: Apache-2.0
"""The index says a tensor that the file has not."""


def make(c):
    c.index["weight_map"][c.weight(1)] = c.second
