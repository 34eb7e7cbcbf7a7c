# SPDX-License-Identifier: Apache-2.0
"""A table of random bytes, made in place in a tmpfs, for the benchmarks.

The same bytes are read as `split` (all codes, then all scales) and as `packed`
(records of codes and scales).  The file is unlinked as soon as it is open, so
that nothing is left behind however the process ends.

On its own: make one, register it, and say what that took.
"""
import argparse
import concurrent.futures
import json
import mmap
import os
import sys
import tempfile
import time

import numpy as np

import cuda_driver
import engram_ctypes

DIM = 256
BLOCK = 32
SCALES = DIM // BLOCK
RECORD = DIM + SCALES
HUGE_PAGE = 2 << 20
FILL_CHUNK = 64 << 20
REGISTER_CHUNK = 4 << 30


class TableError(RuntimeError):
    """The table can not be made here; the text says what to change."""


def _check_room(directory, size):
    room = os.statvfs(directory)
    free = room.f_bavail * room.f_frsize
    if free < size:
        raise TableError(
            f"{directory} has {free / 2**30:.1f} GiB free, the table needs "
            f"{size / 2**30:.1f}: mount a larger tmpfs (mount -t tmpfs -o "
            "huge=always,size=SIZE) and give it with --dir, or lower --gib")


def _map_unlinked(directory, size):
    with tempfile.TemporaryFile(dir=directory, prefix="engram-bench-") as file:
        os.ftruncate(file.fileno(), size)
        return mmap.mmap(file.fileno(), size, mmap.MAP_SHARED,
                         mmap.PROT_READ | mmap.PROT_WRITE)


def _fill(data, threads, seed):
    """One block of random words, times another key in each chunk."""
    words = data.view(np.uint64)
    generator = np.random.SFC64(seed)
    step = FILL_CHUNK // 8
    block = generator.random_raw(min(step, len(words)))
    starts = range(0, len(words), step)
    keys = generator.random_raw(len(starts))

    def chunk(start, key):
        part = words[start:start + step]
        # Odd, so that no bit of the block is lost.
        np.multiply(block[:len(part)], key | np.uint64(1), out=part)

    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        list(pool.map(chunk, starts, keys))


def _huge_bytes(address):
    """How much of the mapping at `address` is mapped by huge pages."""
    inside = False
    with open("/proc/self/smaps", encoding="ascii", errors="replace") as smaps:
        for line in smaps:
            head = line.split(None, 1)[0]
            if "-" in head and not head.endswith(":"):
                begin, end = (int(x, 16) for x in head.split("-"))
                inside = begin <= address < end
            elif inside and head == "ShmemPmdMapped:":
                return int(line.split()[1]) << 10
    return 0


class Table:
    """Use it in a `with`; what it hands out ends with it."""

    def __init__(self, directory, gib, threads=None, seed=1, register=True,
                 read_only=True):
        self.rows = int(gib * 2**30) // RECORD
        if not 0 < self.rows < 2**31:
            raise TableError(f"--gib {gib}: that is {self.rows} rows, and row "
                             "numbers are int32")
        size = -(-self.rows * RECORD // HUGE_PAGE) * HUGE_PAGE
        _check_room(directory, size)
        self._registered = []
        self._map = _map_unlinked(directory, size)
        self.data = np.frombuffer(self._map, np.uint8)
        self.address = self.data.ctypes.data
        started = time.monotonic()
        _fill(self.data, threads or os.cpu_count(), seed)
        self.info = {
            "directory": str(directory), "gib": size / 2**30,
            "rows": self.rows, "record_bytes": RECORD,
            "fill_seconds": time.monotonic() - started,
            "huge_gib": _huge_bytes(self.address) / 2**30}
        if register:
            try:
                self._register(size, read_only)
            except BaseException:
                self.close()
                raise

    def _register(self, size, read_only):
        read_only = bool(read_only and cuda_driver.attribute(
            cuda_driver.READ_ONLY_REGISTER))
        before = cuda_driver.free_device_bytes()
        started = time.monotonic()
        for offset in range(0, size, REGISTER_CHUNK):
            address = self.address + offset
            cuda_driver.register(address, min(REGISTER_CHUNK, size - offset),
                                 read_only)
            self._registered.append(address)
        seconds = time.monotonic() - started
        self.info.update(
            read_only=read_only, register_seconds=seconds,
            register_seconds_per_gib=seconds / (size / 2**30),
            device_mib=(before - cuda_driver.free_device_bytes()) / 2**20)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Unregister and unmap; no kernel may read the table any more."""
        while self._registered:
            cuda_driver.unregister(self._registered.pop())
        self.data = None
        try:
            self._map.close()
        except BufferError:
            pass  # somebody still has a view: it goes with the process

    def _split_scales(self):
        return self.rows * DIM

    def host_rows(self, layout, ids):
        """Codes and scales of some rows, copied, on the CPU."""
        if layout == "packed":
            records = self.data[:self.rows * RECORD].reshape(-1, RECORD)[ids]
            return records[:, :DIM], records[:, DIM:]
        middle = self._split_scales()
        codes = self.data[:middle].reshape(-1, DIM)
        scales = self.data[middle:self.rows * RECORD].reshape(-1, SCALES)
        return codes[ids], scales[ids]

    def rows_struct(self, layout):
        packed = layout == "packed"
        offset = DIM if packed else self._split_scales()
        return engram_ctypes.Rows(
            codes=self.address, scales=self.address + offset,
            code_stride_bytes=RECORD if packed else DIM,
            scale_stride_bytes=RECORD if packed else SCALES,
            row_begin=0, row_end=self.rows,
            dtype=engram_ctypes.FP8_E4M3,
            scale_scheme=engram_ctypes.SCALE_UE8M0,
            dim=DIM, block_size=BLOCK, tensor_scale=1.0)

    def split_tensors(self):
        """Codes [rows, DIM] and scales [rows, SCALES] as torch tensors on the
        device that read the host memory."""
        import torch

        middle = self._split_scales()
        codes = _device_view(self.address, self.rows * DIM)
        scales = _device_view(self.address + middle, self.rows * SCALES)
        return (codes.view(torch.float8_e4m3fn).view(self.rows, DIM),
                scales.view(self.rows, SCALES))


def _device_view(address, size):
    """Registered host memory as a tensor of the current device."""
    import torch

    class Interface:
        __cuda_array_interface__ = {
            "shape": (size,), "typestr": "|u1", "data": (address, False),
            "strides": None, "version": 2}

    tensor = torch.as_tensor(Interface(),
                             device=f"cuda:{torch.cuda.current_device()}")
    if tensor.data_ptr() != address:
        raise TableError("torch copied the table instead of viewing it: "
                         "nothing measured with it would be true")
    return tensor


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", default="/dev/shm",
                        help="a tmpfs, best mounted huge=always (%(default)s)")
    parser.add_argument("--gib", type=float, default=60,
                        help="size of the table (%(default)s)")
    parser.add_argument("--writable-registration", action="store_true",
                        help="without the read-only flag")
    parser.add_argument("--no-register", action="store_true",
                        help="make it only; needs no GPU")
    args = parser.parse_args()
    if not args.no_register:
        import torch

        torch.zeros(1, device="cuda")
    try:
        with Table(args.dir, args.gib, register=not args.no_register,
                   read_only=not args.writable_registration) as table:
            print(json.dumps(table.info, indent=1))
    except (TableError, cuda_driver.DriverError) as error:
        sys.exit(f"table.py: {error}")


if __name__ == "__main__":
    main()
