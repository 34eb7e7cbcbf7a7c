# SPDX-License-Identifier: Apache-2.0
"""Engram tables that engramd holds, from Python.

    import engram_client

    with engram_client.Client() as client:
        with client.attach("deepseek-v4.1-flash", device="cuda") as table:
            ids = table.hash(input_ids, positions, query_start_loc)
            rows = table.lookup(ids, layer=1)

Client and AsyncClient operate the sidecar and need nothing but Python; Table
needs libengram, and NumPy or torch for the arrays it is given.
"""
from . import errors
from ._version import PROTOCOL, __version__
from .aio import AsyncClient
from .client import Client
from .errors import EngramError

__all__ = ["AsyncClient", "Client", "EngramError", "Gather", "Layer",
           "PROTOCOL", "Table", "__version__", "errors", "float32", "gate",
           "sp_rows"]

# Loaded when they are first asked for: control needs no arrays.
_LAZY = {"Table": "table", "Layer": "table", "Gather": "gather",
         "gate": "kernels", "sp_rows": "kernels", "float32": "kernels"}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"engram_client has no {name}")
    import importlib

    module = importlib.import_module("." + _LAZY[name], __name__)
    return getattr(module, name)
