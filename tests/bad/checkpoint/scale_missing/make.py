# SPDX-License-Identifier: Apache-2.0
"""A layer has no scales."""


def make(c):
    c.remove(c.scale(14))
