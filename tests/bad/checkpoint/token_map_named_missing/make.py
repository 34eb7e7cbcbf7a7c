# SPDX-License-Identifier: Apache-2.0
"""The configured token map is not there."""
WORDS = ["map.json"]


def make(c):
    c.files["engram_token_map.json"] = None
