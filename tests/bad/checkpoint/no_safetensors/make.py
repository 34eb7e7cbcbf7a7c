# SPDX-License-Identifier: Apache-2.0
"""Nothing but config.json and the token map."""


def make(c):
    c.shards = {}
    c.files["model.safetensors.index.json"] = None
