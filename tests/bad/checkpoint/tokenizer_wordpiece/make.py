# SPDX-License-Identifier: Apache-2.0
"""Tokens are put together as WordPiece does."""


def make(c):
    c.use_tokenizer()
    c.tokenizer["decoder"] = {"type": "WordPiece", "prefix": "##"}
