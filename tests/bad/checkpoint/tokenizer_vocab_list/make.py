# SPDX-License-Identifier: Apache-2.0
"""The vocabulary has no ids."""


def make(c):
    c.use_tokenizer()
    c.tokenizer["model"]["vocab"] = ["a", "b"]
