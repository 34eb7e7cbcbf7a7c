# SPDX-License-Identifier: Apache-2.0
"""Codes in a dtype that is not fp8 e4m3."""


def make(c):
    c.tensor(c.weight(1))["dtype"] = "F8_E5M2"
