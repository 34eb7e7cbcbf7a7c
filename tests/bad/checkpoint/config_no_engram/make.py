# SPDX-License-Identifier: Apache-2.0
"""A model without Engram tables."""


def make(c):
    for key in list(c.config):
        if key.startswith("engram"):
            del c.config[key]
