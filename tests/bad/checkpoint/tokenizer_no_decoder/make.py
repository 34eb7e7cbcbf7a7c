# SPDX-License-Identifier: Apache-2.0
"""It does not say how tokens become text."""


def make(c):
    c.use_tokenizer()
    c.tokenizer["decoder"] = None
