# SPDX-License-Identifier: Apache-2.0
"""The pad token is past the last token."""


def make(c):
    c.use_tokenizer()
    c.config["engram_pad_token_id"] = 10
