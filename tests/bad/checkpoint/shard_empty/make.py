# SPDX-License-Identifier: Apache-2.0
"""A shard of no bytes."""


def make(c):
    c.files[c.first] = b""
