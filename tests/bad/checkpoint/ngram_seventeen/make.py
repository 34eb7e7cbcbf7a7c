# SPDX-License-Identifier: Apache-2.0
"""n-grams of seventeen tokens."""


def make(c):
    c.config["engram_max_ngram_size"] = 17
