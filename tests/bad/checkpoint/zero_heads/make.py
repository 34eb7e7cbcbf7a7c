# SPDX-License-Identifier: Apache-2.0
"""No hash heads."""


def make(c):
    c.config["engram_n_heads"] = 0
