# SPDX-License-Identifier: Apache-2.0
"""A layer id is negative."""


def make(c):
    c.config["engram_layer_ids"] = [1, -14]
