# SPDX-License-Identifier: Apache-2.0
"""config.json is cut off."""


def make(c):
    c.files["config.json"] = b'{"text_config": {'
