# SPDX-License-Identifier: Apache-2.0
"""A tensor begins before the data."""


def make(c):
    c.tensor(c.weight(1))["offsets"] = [-5, 3835]
