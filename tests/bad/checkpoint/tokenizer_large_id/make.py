# SPDX-License-Identifier: Apache-2.0
"""An id of more than 32 bits."""


def make(c):
    c.use_tokenizer()
    c.tokenizer["model"]["vocab"]["x"] = 1 << 32
