# SPDX-License-Identifier: Apache-2.0
"""A tensor without a shape."""


def make(c):
    c.tensor(c.scale(1))["without"] = ["shape"]
