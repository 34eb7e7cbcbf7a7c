# SPDX-License-Identifier: Apache-2.0
"""One offset instead of two."""


def make(c):
    c.tensor(c.scale(1))["offsets"] = [3877]
