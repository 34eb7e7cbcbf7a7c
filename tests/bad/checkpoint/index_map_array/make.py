# SPDX-License-Identifier: Apache-2.0
"""weight_map is an array."""


def make(c):
    c.index["weight_map"] = []
