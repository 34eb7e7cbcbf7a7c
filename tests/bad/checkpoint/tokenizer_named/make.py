# SPDX-License-Identifier: Apache-2.0
"""tokenizer.json is what is asked for, though there is a map."""
WORDS = ["tokenizer.json"]


def make(c):
    c.use_tokenizer()
    del c.files["engram_token_map.json"]
    c.tokenizer["model"]["vocab"]["x"] = 10
