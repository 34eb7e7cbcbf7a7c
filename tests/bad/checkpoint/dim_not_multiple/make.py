# SPDX-License-Identifier: Apache-2.0
"""Rows that are no multiple of 32 wide."""


def make(c):
    c.config["engram_head_dim"] = 65
