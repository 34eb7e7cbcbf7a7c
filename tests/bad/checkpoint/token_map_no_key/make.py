# SPDX-License-Identifier: Apache-2.0
"""The token map has another key."""


def make(c):
    c.token_map = {"map": []}
