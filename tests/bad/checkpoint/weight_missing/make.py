# SPDX-License-Identifier: Apache-2.0
"""A layer has no codes."""


def make(c):
    c.remove(c.weight(14))
