# SPDX-License-Identifier: Apache-2.0
"""Two tensors share bytes."""


def make(c):
    c.tensor(c.scale(1))["offsets"] = [3800, 3920]
