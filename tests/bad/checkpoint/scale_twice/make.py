# SPDX-License-Identifier: Apache-2.0
"""Two tensors could be the scales."""


def make(c):
    c.add(c.first, "model.layers.1.engram.embed.scale", "F8_E8M0", [60, 2])
