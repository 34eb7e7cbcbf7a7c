# SPDX-License-Identifier: Apache-2.0
"""The index is cut off."""


def make(c):
    c.files["model.safetensors.index.json"] = b'{"weight_map": {'
