# SPDX-License-Identifier: Apache-2.0
"""A name in the header is not UTF-8."""


def make(c):
    c.files[c.first] = c.shard(c.first, b'{"\xff\xfe": {}}')
