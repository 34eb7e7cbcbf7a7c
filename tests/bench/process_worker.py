# SPDX-License-Identifier: Apache-2.0
"""A process of bench_processes.py: gets a table ready in its way, when it is told
to, and answers in JSON lines.

    process_worker.py cpu|cuda
    own DIRECTORY     read the tables of a checkpoint into memory of its own,
                      pinned as torch does it on cuda
    attach SOCKET     attach to engramd's
    memory            what the process holds
"""
import concurrent.futures
import json
import os
import pathlib
import struct
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "clients" / "python"))

import numpy as np  # noqa: E402

import engram_client  # noqa: E402

TABLE = ("engram.embed.weight", "engram.embed.scale")
ROWS = 24
THREADS, PIECE = 8, 16 << 20
KEPT = []


def tensors(directory):
    """(name, file, first byte, [rows, bytes]) of a checkpoint's tables."""
    for path in sorted(pathlib.Path(directory).glob("*.safetensors")):
        with open(path, "rb") as file:
            size, = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(size))
        for name, entry in header.items():
            if name.endswith(TABLE):
                begin, end = entry["data_offsets"]
                rows = entry["shape"][0]
                yield name, path, 8 + size + begin, (rows,
                                                     (end - begin) // rows)


def read(path, begin, target):
    """Into a NumPy array, with threads, as fast as Python can."""
    flat = target.reshape(-1)

    def piece(at):
        part = memoryview(flat[at:at + PIECE])
        done = 0
        while done < len(part):
            done += os.preadv(file.fileno(), [part[done:]], begin + at + done)

    with open(path, "rb") as file, \
            concurrent.futures.ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(piece, range(0, len(flat), PIECE)))


class Cpu:
    def start(self):
        pass

    def room(self, shape):
        array = np.empty(shape, dtype=np.uint8)
        return array, array

    def first_rows(self, own):
        return own[:ROWS]

    def attach(self, socket):
        table = engram_client.Client(socket).attach("bench")
        ids = np.arange(table.num_cols, dtype=np.int32)[None]
        for layer in table.layers:
            table.lookup(ids, layer)
        return table


class Cuda:
    def start(self):
        import torch

        self.torch = torch
        torch.zeros(1, device="cuda")
        torch.cuda.synchronize()

    def room(self, shape):
        tensor = self.torch.empty(shape, dtype=self.torch.uint8,
                                  pin_memory=True)
        return tensor, tensor.numpy()

    def first_rows(self, own):
        return own[:ROWS].to("cuda").cpu().numpy()

    def attach(self, socket):
        table = engram_client.Client(socket).attach("bench", device="cuda")
        ids = self.torch.arange(table.num_cols, dtype=self.torch.int32,
                                device="cuda")[None]
        for layer in table.layers:
            table.lookup(ids, layer)
        self.torch.cuda.synchronize()
        return table


def own(device, directory):
    total, first = 0, 0
    for _, path, begin, shape in tensors(directory):
        kept, array = device.room(shape)
        read(path, begin, array)
        KEPT.append(kept)
        total += array.nbytes
        first += int(device.first_rows(kept).sum())
    return total, first


def attach(device, socket):
    table = device.attach(socket)
    KEPT.append(table)
    numbers = np.arange(ROWS)
    return table.mapped_bytes, sum(int(table.rows(numbers, layer).sum())
                                   for layer in table.layers)


def pss():
    with open("/proc/self/smaps_rollup", encoding="ascii") as file:
        return {name: 1024 * int(value.split()[0]) for name, value in (
            line.split(":", 1) for line in file if line.startswith(
                ("Rss:", "Pss:", "Pss_Shmem:", "Private_Dirty:", "Locked:")))}


def main():
    device = {"cpu": Cpu, "cuda": Cuda}[sys.argv[1]]()
    device.start()
    print(json.dumps({"pid": os.getpid(), **pss()}), flush=True)
    for line in sys.stdin:
        word, _, rest = line.strip().partition(" ")
        if word == "memory":
            print(json.dumps(pss()), flush=True)
            continue
        began = time.monotonic()
        total, check = {"own": own, "attach": attach}[word](device, rest)
        print(json.dumps({"seconds": time.monotonic() - began,
                          "bytes": total, "check": check}), flush=True)


if __name__ == "__main__":
    main()
