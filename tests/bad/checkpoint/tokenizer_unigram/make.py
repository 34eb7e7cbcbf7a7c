# SPDX-License-Identifier: Apache-2.0
"""A model that is not BPE."""


def make(c):
    c.use_tokenizer()
    c.tokenizer["model"] = {"type": "Unigram", "vocab": [["a", 0.0]]}
