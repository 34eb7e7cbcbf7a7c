# SPDX-License-Identifier: Apache-2.0
"""Two tokens with one id."""


def make(c):
    c.use_tokenizer()
    c.tokenizer["model"]["vocab"]["x"] = 3
