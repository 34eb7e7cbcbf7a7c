# SPDX-License-Identifier: Apache-2.0
"""Offsets are strings."""


def make(c):
    c.tensor(c.scale(1))["offsets"] = ["0", "120"]
