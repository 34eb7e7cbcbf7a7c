# SPDX-License-Identifier: Apache-2.0
"""The header is an array."""


def make(c):
    c.files[c.first] = c.shard(c.first, b"[1, 2]")
