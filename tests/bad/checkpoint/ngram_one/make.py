# SPDX-License-Identifier: Apache-2.0
"""n-grams of one token."""


def make(c):
    c.config["engram_max_ngram_size"] = 1
