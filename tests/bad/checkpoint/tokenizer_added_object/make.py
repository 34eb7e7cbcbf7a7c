# SPDX-License-Identifier: Apache-2.0
"""Added tokens that are no list."""


def make(c):
    c.use_tokenizer()
    c.tokenizer["added_tokens"] = {"x": 10}
