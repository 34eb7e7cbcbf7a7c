# SPDX-License-Identifier: Apache-2.0
"""An id that is text."""


def make(c):
    c.use_tokenizer()
    c.tokenizer["model"]["vocab"]["x"] = "9"
