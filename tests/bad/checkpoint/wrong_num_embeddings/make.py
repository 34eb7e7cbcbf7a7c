# SPDX-License-Identifier: Apache-2.0
"""The row count is not what the primes add up to."""


def make(c):
    c.config["engram_num_embeddings"] = [60, 121]
