#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a call of the Python client costs the calling thread, beside the call of
C that it makes: lookup, hash and gate of one token, with torch tensors on a GPU
(or, with --device cpu, NumPy arrays).

The median, over rounds, of the mean of a round of calls; on a GPU the stream is
drained between rounds, so that a full queue is not in the times.  `overhead` is
the difference to C's call with its arguments made before.
"""
import ctypes
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import measure
import sidecar

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "clients" / "python"))

import numpy as np  # noqa: E402

import engram_client  # noqa: E402
from engram_client import _abi, _arrays, _library, kernels  # noqa: E402
from engram_client.table import lookup_params  # noqa: E402

CALLS = 200


def parser():
    result = measure.parser(__doc__, table=False)
    result.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    result.add_argument("--rounds", type=int,
                        help="(100; with --quick 5)")
    return result


class Arrays:
    """One token's, and the calls on them."""

    def __init__(self, table, device):
        self.table = table
        self.cuda = device == "cuda"
        hc, dim = 4, 5120
        shapes = {"hidden": (1, hc, dim), "kv": (1, (hc + 1) * dim),
                  "q_weight": (hc, dim), "k_weight": (hc, dim)}
        made = {name: np.zeros(shape, dtype=np.uint16)
                for name, shape in shapes.items()}
        made.update(tokens=np.array([5], dtype=np.int32),
                    positions=np.array([0]),
                    bounds=np.array([0, 1], dtype=np.int32))
        if self.cuda:
            import torch

            self.synchronize = torch.cuda.synchronize
            made = {name: torch.from_numpy(array.view(np.int16)).view(
                torch.bfloat16).cuda() if array.dtype == np.uint16
                else torch.from_numpy(array).cuda()
                for name, array in made.items()}
        else:
            self.synchronize = lambda: None
        self.made = made
        self.ids = table.hash(made["tokens"], made["positions"],
                              made["bounds"])
        self.rows = table.lookup(self.ids, table.layers[0])
        self.out = table.gate(*(made[name] for name in shapes))

    def python(self):
        """{name: call}."""
        table, made = self.table, self.made
        layer = table.layers[0]
        return {
            "lookup": lambda: table.lookup(self.ids, layer, out=self.rows),
            "hash": lambda: table.hash(made["tokens"], made["positions"],
                                       made["bounds"], out=self.ids),
            "gate": lambda: table.gate(
                made["hidden"], made["kv"], made["q_weight"],
                made["k_weight"], out=self.out)}

    def c(self):
        """The same with everything made before."""
        table, lib = self.table, _library.engram()
        mapping = table._mapped()
        ids = table._layer_ids(self.ids, 0)
        view = _arrays.view
        made = {"input_ids": view(self.made["tokens"], "", "int32", 1),
                "positions": view(self.made["positions"], "", "int64", 1),
                "query_start_loc": view(self.made["bounds"], "", "int32", 1)}
        self.batch = kernels.hash_batch(made, 0)
        gate = [view(self.made[name], "", "bf16", dims)
                for name, dims in (("hidden", 3), ("kv", 2), ("q_weight", 2),
                                   ("k_weight", 2))]
        to = view(self.out, "", "bf16", 3)
        self.gate = kernels.gate_args(*gate, _arrays.NO_VIEW, to, 1e-20, 1e-6)
        self.params = lookup_params(ids, True)
        self.error = _abi.Error()
        batch, args, params, error = (
            ctypes.cast(self.batch, ctypes.c_void_p).value,
            ctypes.cast(self.gate, ctypes.c_void_p).value,
            ctypes.cast(self.params, ctypes.c_void_p).value,
            ctypes.addressof(self.error))
        rows = view(self.rows, "", "bf16", 3).pointer
        hashed = view(self.ids, "", "int32", 3).pointer
        out = to.pointer
        if self.cuda:
            cuda, stream = _library.cuda(), _arrays.stream_pointer(
                None, table.device)
            return {
                "lookup": lambda: cuda.cuda_table_lookup(
                    mapping.cuda, 0, params, rows, stream),
                "hash": lambda: cuda.cuda_table_hash(
                    mapping.cuda, batch, hashed, stream),
                "gate": lambda: cuda.cuda_gate(args, out, stream, error)}
        return {
            "lookup": lambda: lib.lookup(
                mapping.table, 0, ids.pointer, *ids.strides, 1, rows, None),
            "hash": lambda: lib.hash(mapping.table, batch, hashed),
            "gate": lambda: lib.gate(args, out)}


def microseconds(calls, rounds, synchronize):
    """{name: median of rounds}; all take turns."""
    found = {name: [] for name in calls}
    for _ in range(rounds + 2):
        for name, call in calls.items():
            synchronize()
            began = time.perf_counter()
            for _ in range(CALLS):
                call()
            found[name].append((time.perf_counter() - began) * 1e6 / CALLS)
    synchronize()
    return {name: statistics.median(values[2:])
            for name, values in found.items()}


def run(args, work):
    checkpoint = work / "checkpoint"
    subprocess.run([sidecar.engramd.SYNTH, "--engram-vocab-size", "1000",
                    checkpoint], check=True, stdout=subprocess.DEVNULL)
    server = sidecar.Sidecar(work, checkpoint, None, None)
    try:
        server.load()
        with engram_client.Client(server.socket) as client, client.attach(
                "bench", device=args.device) as table:
            arrays = Arrays(table, args.device)
            python, c = arrays.python(), arrays.c()
            found = microseconds(
                {**{f"python {name}": call for name, call in python.items()},
                 **{f"c {name}": call for name, call in c.items()}},
                args.rounds, arrays.synchronize)
    finally:
        server.stop()
    calls = [{"call": name, "python_us": found[f"python {name}"],
              "c_us": found[f"c {name}"],
              "overhead_us": found[f"python {name}"] - found[f"c {name}"]}
             for name in python]
    for one in calls:
        print(f"{one['call']:8s} {one['python_us']:6.2f} us, C "
              f"{one['c_us']:6.2f}, overhead {one['overhead_us']:6.2f}")
    return {"device": args.device, "calls": calls,
            "environment": measure.environment()
            if args.device == "cuda" else measure.machine()}


def main():
    args = parser().parse_args()
    args.rounds = args.rounds or (5 if args.quick else 100)
    os.environ.setdefault("ENGRAM_LIB_DIR",
                          str(pathlib.Path(args.lib).resolve().parent))
    if args.device == "cuda":
        measure.require_gpu()
    work = pathlib.Path(tempfile.mkdtemp(prefix="engram-bench-", dir="/tmp"))
    try:
        measure.write(args, "python", run(args, work))
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
