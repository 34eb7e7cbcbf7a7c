# SPDX-License-Identifier: Apache-2.0
"""Fewer row counts than layers."""


def make(c):
    c.config["engram_num_embeddings"] = [60]
