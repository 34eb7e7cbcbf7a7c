# SPDX-License-Identifier: Apache-2.0
"""Fewer entries than the model has tokens."""


def make(c):
    c.token_map["token_map"] = list(range(10))
