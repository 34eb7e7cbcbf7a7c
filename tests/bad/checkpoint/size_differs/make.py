# SPDX-License-Identifier: Apache-2.0
"""The shape and the bytes disagree."""


def make(c):
    c.tensor(c.scale(1))["offsets"] = [3877, 3996]
