# SPDX-License-Identifier: Apache-2.0
"""Its tokens are of one number, config.json is of another."""


def make(c):
    c.use_tokenizer()
    c.tokenizer["model"]["vocab"]["x"] = 10
