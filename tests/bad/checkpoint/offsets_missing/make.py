# SPDX-License-Identifier: Apache-2.0
"""A tensor without offsets."""


def make(c):
    c.tensor(c.scale(1))["without"] = ["data_offsets"]
