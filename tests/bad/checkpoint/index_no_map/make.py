# SPDX-License-Identifier: Apache-2.0
"""The index has no weight_map."""


def make(c):
    del c.index["weight_map"]
