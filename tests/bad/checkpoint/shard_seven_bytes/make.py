# SPDX-License-Identifier: Apache-2.0
"""A shard that ends in the length of its header."""


def make(c):
    c.files[c.first] = bytes(7)
