# SPDX-License-Identifier: Apache-2.0
"""A token twice."""


def make(c):
    c.use_tokenizer()
    c.files["tokenizer.json"] = (
        b'{"model": {"type": "BPE", "vocab": {"a": 0, "a": 1}}}')
