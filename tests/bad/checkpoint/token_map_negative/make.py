# SPDX-License-Identifier: Apache-2.0
"""A negative compressed id."""


def make(c):
    c.token_map["token_map"][5] = -1
