# SPDX-License-Identifier: Apache-2.0
"""A file in another directory."""


def make(c):
    c.index["weight_map"][c.weight(1)] = "../secret.safetensors"
