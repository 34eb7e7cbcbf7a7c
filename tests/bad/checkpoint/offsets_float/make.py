# SPDX-License-Identifier: Apache-2.0
"""An offset is no integer."""


def make(c):
    c.tensor(c.scale(1))["offsets"] = [3877.0, 3997.0]
