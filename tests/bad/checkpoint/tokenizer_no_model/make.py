# SPDX-License-Identifier: Apache-2.0
"""There is no model."""


def make(c):
    c.use_tokenizer()
    del c.tokenizer["model"]
