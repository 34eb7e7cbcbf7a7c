# SPDX-License-Identifier: Apache-2.0
"""A file by an absolute name."""


def make(c):
    c.index["weight_map"][c.weight(1)] = "/etc/passwd"
