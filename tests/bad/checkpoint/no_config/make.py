# SPDX-License-Identifier: Apache-2.0
"""config.json is missing."""


def make(c):
    c.files["config.json"] = None
