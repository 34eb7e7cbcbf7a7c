# SPDX-License-Identifier: Apache-2.0
"""An empty file."""


def make(c):
    c.use_tokenizer()
    c.files["tokenizer.json"] = b""
