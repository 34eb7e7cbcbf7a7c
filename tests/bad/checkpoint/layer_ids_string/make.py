# SPDX-License-Identifier: Apache-2.0
"""Layer ids are strings."""


def make(c):
    c.config["engram_layer_ids"] = ["1", "14"]
