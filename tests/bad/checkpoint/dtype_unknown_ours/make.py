# SPDX-License-Identifier: Apache-2.0
"""Codes in a dtype that nobody knows."""


def make(c):
    c.tensor(c.weight(1))["dtype"] = "F8_E9M9"
