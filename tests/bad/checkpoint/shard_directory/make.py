# SPDX-License-Identifier: Apache-2.0
"""A directory in place of a shard."""


def make(c):
    c.files[c.first] = lambda path: path.mkdir()
