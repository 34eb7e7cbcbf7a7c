# SPDX-License-Identifier: Apache-2.0
"""The pad token has no entry."""


def make(c):
    c.config["engram_pad_token_id"] = 16
