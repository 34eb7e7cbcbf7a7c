# SPDX-License-Identifier: Apache-2.0
"""The row counts are missing."""


def make(c):
    del c.config["engram_num_embeddings"]
