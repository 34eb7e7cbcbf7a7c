# SPDX-License-Identifier: Apache-2.0
"""There is no vocabulary."""


def make(c):
    c.use_tokenizer()
    del c.tokenizer["model"]["vocab"]
