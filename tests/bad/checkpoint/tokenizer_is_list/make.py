# SPDX-License-Identifier: Apache-2.0
"""Something else of that name."""


def make(c):
    c.use_tokenizer()
    c.files["tokenizer.json"] = b'{"vocab": {"a": 0}}'
