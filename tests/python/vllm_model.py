# SPDX-License-Identifier: Apache-2.0
"""What the tests of the vLLM plugin share."""
import importlib
import sys

import engram_client.vllm as plugin
import rows_of
from python_setting import DIM, LAYERS


def module(name):
    return importlib.import_module("vllm." + name)


def forget():
    """Modules of vLLM, and what the plugin keeps for a process."""
    for name in [n for n in sys.modules if n.split(".")[0] == "vllm"]:
        del sys.modules[name]
    sys.meta_path[:] = [finder for finder in sys.meta_path
                        if not isinstance(finder, plugin._Finder)]
    for embedding in plugin._embeddings:
        embedding.engramd.detach()
    plugin._embeddings.clear()
    plugin._client.cache_clear()


def wanted(layer, hashes):
    ids = hashes[:, LAYERS.index(layer)].numpy()
    return rows_of.lookup(layer, ids, DIM)
