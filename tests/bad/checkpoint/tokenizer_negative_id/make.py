# SPDX-License-Identifier: Apache-2.0
"""An id below zero."""


def make(c):
    c.use_tokenizer()
    c.tokenizer["model"]["vocab"]["x"] = -1
