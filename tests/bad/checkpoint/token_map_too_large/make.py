# SPDX-License-Identifier: Apache-2.0
"""A compressed id past the last."""


def make(c):
    c.token_map["token_map"][5] = 10
