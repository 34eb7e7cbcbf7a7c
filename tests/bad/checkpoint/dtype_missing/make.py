# SPDX-License-Identifier: Apache-2.0
"""A tensor without a dtype."""


def make(c):
    c.tensor(c.scale(1))["without"] = ["dtype"]
