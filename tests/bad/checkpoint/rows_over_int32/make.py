# SPDX-License-Identifier: Apache-2.0
"""More rows than an int32 id can name."""


def make(c):
    c.config["engram_vocab_size"] = 2000000000
