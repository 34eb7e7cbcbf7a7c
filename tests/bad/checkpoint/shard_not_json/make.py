# SPDX-License-Identifier: Apache-2.0
"""The header is not JSON."""


def make(c):
    c.files[c.first] = c.shard(c.first, b"safetensors")
