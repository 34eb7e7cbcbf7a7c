# SPDX-License-Identifier: Apache-2.0
"""The number of heads is a string."""


def make(c):
    c.config["engram_n_heads"] = "2"
