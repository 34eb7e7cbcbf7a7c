# SPDX-License-Identifier: Apache-2.0
"""Bytes are decoded twice."""


def make(c):
    c.use_tokenizer()
    c.tokenizer["decoder"] = {"type": "Sequence", "decoders": [
        {"type": "ByteLevel"}, {"type": "ByteLevel"}]}
