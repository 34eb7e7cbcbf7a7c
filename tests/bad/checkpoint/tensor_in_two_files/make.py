# SPDX-License-Identifier: Apache-2.0
"""Without an index, two files have one tensor."""


def make(c):
    c.files["model.safetensors.index.json"] = None
    c.shards[c.second][c.weight(1)] = dict(c.tensor(c.weight(1)))
