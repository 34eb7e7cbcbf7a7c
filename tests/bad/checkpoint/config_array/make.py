# SPDX-License-Identifier: Apache-2.0
"""config.json is an array."""


def make(c):
    c.files["config.json"] = b"[]"
