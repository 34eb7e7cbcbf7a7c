# SPDX-License-Identifier: Apache-2.0
"""The file was cut."""


def make(c):
    c.use_tokenizer()
    c.files["tokenizer.json"] = lambda path: path.write_text(
        '{"model": {"type": "BPE", "vocab": {"a": 0')
