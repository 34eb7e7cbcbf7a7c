# SPDX-License-Identifier: Apache-2.0
"""A directory in place of config.json."""


def make(c):
    c.files["config.json"] = lambda path: path.mkdir()
