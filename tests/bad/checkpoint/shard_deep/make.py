# SPDX-License-Identifier: Apache-2.0
"""The header nests deeper than is accepted."""


def make(c):
    c.files[c.first] = c.shard(c.first, b'{"a": ' + b"[" * 100 + b"]" * 100 + b"}")
