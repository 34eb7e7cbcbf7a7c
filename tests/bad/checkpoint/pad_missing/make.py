# SPDX-License-Identifier: Apache-2.0
"""The pad token is missing."""


def make(c):
    del c.config["engram_pad_token_id"]
