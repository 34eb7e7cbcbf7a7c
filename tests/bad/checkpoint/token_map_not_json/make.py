# SPDX-License-Identifier: Apache-2.0
"""The token map is cut off."""


def make(c):
    c.files["engram_token_map.json"] = b"[1, 2"
