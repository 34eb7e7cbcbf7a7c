# SPDX-License-Identifier: Apache-2.0
"""A compressed id is no integer."""


def make(c):
    c.token_map["token_map"][5] = 5.0
