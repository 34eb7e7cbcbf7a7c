# SPDX-License-Identifier: Apache-2.0
"""The row width is missing."""


def make(c):
    del c.config["engram_head_dim"]
