# SPDX-License-Identifier: Apache-2.0
"""A layer is listed twice."""


def make(c):
    c.config["engram_layer_ids"] = [1, 1]
