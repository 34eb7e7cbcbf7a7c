# SPDX-License-Identifier: Apache-2.0
"""An added token without text."""


def make(c):
    c.use_tokenizer()
    c.tokenizer["added_tokens"].append({"id": 10})
