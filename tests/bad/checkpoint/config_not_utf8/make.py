# SPDX-License-Identifier: Apache-2.0
"""config.json holds a byte that is not UTF-8."""


def make(c):
    c.files["config.json"] = b'{"a": "\xff"}'
