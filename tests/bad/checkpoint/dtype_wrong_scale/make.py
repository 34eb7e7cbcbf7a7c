# SPDX-License-Identifier: Apache-2.0
"""Scales as fp8 e4m3."""


def make(c):
    c.tensor(c.scale(1))["dtype"] = "F8_E4M3"
