# SPDX-License-Identifier: Apache-2.0
"""Spaces are spelt as SentencePiece does."""


def make(c):
    c.use_tokenizer()
    c.tokenizer["decoder"] = {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"}, {"type": "Fuse"}]}
