# SPDX-License-Identifier: Apache-2.0
"""Nested a hundred times."""


def make(c):
    c.use_tokenizer()
    c.files["tokenizer.json"] = b'{"model": ' + b"[" * 100
