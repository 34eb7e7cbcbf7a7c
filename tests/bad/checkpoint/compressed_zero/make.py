# SPDX-License-Identifier: Apache-2.0
"""No compressed ids."""


def make(c):
    c.config["engram_compressed_vocab_size"] = 0
