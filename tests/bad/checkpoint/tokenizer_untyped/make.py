# SPDX-License-Identifier: Apache-2.0
"""A model that could be of any kind."""


def make(c):
    c.use_tokenizer()
    c.tokenizer["model"] = {"vocab": {"a": 0}}
