#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The main job, end to end, on a small synthetic checkpoint: `make quickstart`.

Writes a checkpoint, starts engramd on it, loads the table with a progress
bar, lets two separate processes attach, hash the same text, look its rows up
and gate them, compares what they got with the checkpoint's own bytes,
measures that all three processes share one copy of the table, and stops.
Needs nothing but Python's standard library and a built tree.
"""
import array
import json
import math
import mmap
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import time

BUILD = pathlib.Path(os.environ.get("ENGRAM_BUILD", "build"))
BIN = BUILD / "bin"
TEXT = ("The sidecar holds the table once; every engine on the node reads "
        "the same rows.")
LAYERS = (1, 14)


class Failure(Exception):
    """A check of the quick start did not hold."""


def step(text):
    print(f"\n== {text}", flush=True)


class Checkpoint:
    """The rows as the shard files hold them, read independently of engramd."""

    def __init__(self, directory):
        index = json.loads((directory / "model.safetensors.index.json")
                           .read_text())["weight_map"]
        self.tensors = {}
        self.maps = {}
        for name, file in index.items():
            if file not in self.maps:
                self.maps[file] = self._open(directory / file)
            data, header, begin = self.maps[file]
            entry = header[name]
            self.tensors[name] = (data, begin + entry["data_offsets"][0],
                                  entry["shape"])

    @staticmethod
    def _open(path):
        with open(path, "rb") as f:
            data = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)
        size, = struct.unpack("<Q", data[:8])
        return data, json.loads(data[8:8 + size]), 8 + size

    def row(self, layer, row):
        """(code bytes, scale bytes)"""
        out = []
        for what in ("weight", "scale"):
            data, begin, shape = self.tensors[
                f"layers.{layer}.engram.embed.{what}"]
            width = shape[1]
            out.append(data[begin + row * width:begin + (row + 1) * width])
        return out

    def data_bytes(self):
        return sum(shape[0] * shape[1] for name, (_, _, shape)
                   in self.tensors.items() if ".engram.embed." in name)


def fp8(code):
    """e4m3fn: sign, 4 bits of exponent (bias 7), 3 of mantissa."""
    sign = -1.0 if code & 0x80 else 1.0
    exponent, mantissa = code >> 3 & 15, code & 7
    if exponent == 15 and mantissa == 7:
        return math.nan
    if exponent == 0:
        return sign * math.ldexp(mantissa, -9)
    return sign * math.ldexp(8 + mantissa, exponent - 10)


def bf16_bits(value):
    """Of a value that bf16 holds exactly."""
    return struct.unpack("<I", struct.pack("<f", value))[0] >> 16


def bf16_value(bits):
    return struct.unpack("<f", struct.pack("<I", bits << 16))[0]


FP8 = [fp8(code) for code in range(256)]


def expected_row(codes, scales):
    block = len(codes) // len(scales)
    return [bf16_bits(FP8[c] * math.ldexp(1.0, scales[i // block] - 127))
            for i, c in enumerate(codes)]


def expected_gate(hidden, key, value):
    """With unit weights, one copy, in double precision."""
    dim = len(hidden)
    rms = lambda x: 1 / math.sqrt(sum(v * v for v in x) / dim + 1e-20)
    dot = sum(h * k for h, k in zip(hidden, key))
    dot *= rms(hidden) * rms(key) / math.sqrt(dim)
    root = math.copysign(math.sqrt(max(abs(dot), 1e-6)), dot)
    gate = 1 / (1 + math.exp(-root))
    return [h + gate * v for h, v in zip(hidden, value)]


def read_results(path, meta):
    tokens, cols, dim = meta["tokens"], meta["cols"], meta["dim"]
    ids, rows, out = (array.array(code) for code in "iHH")
    with open(path, "rb") as f:
        ids.fromfile(f, len(LAYERS) * tokens * cols)
        rows.fromfile(f, len(LAYERS) * tokens * cols * dim)
        out.fromfile(f, len(LAYERS) * tokens * dim)
    return ids, rows, out


def check_rows(checkpoint, ids, rows, dim):
    """Every row that the clients looked up against the checkpoint's bytes."""
    per_layer = len(ids) // len(LAYERS)
    for i, row_id in enumerate(ids):
        layer = LAYERS[i // per_layer]
        want = expected_row(*checkpoint.row(layer, row_id))
        if rows[i * dim:(i + 1) * dim].tolist() != want:
            raise Failure(f"layer {layer} row {row_id} differs from the "
                          "checkpoint")
    return len(ids)


def check_gate(rows, out, meta):
    tokens, cols, dim = meta["tokens"], meta["cols"], meta["dim"]
    for i in range(len(LAYERS) * tokens):
        at = i * cols * dim
        key = [bf16_value(b) for b in rows[at:at + dim]]
        value = [bf16_value(b) for b in rows[at + dim:at + 2 * dim]]
        base = i % tokens * dim
        hidden = [1.0 if (base + d) % 3 else -1.0 for d in range(dim)]
        want = expected_gate(hidden, key, value)
        got = [bf16_value(b) for b in out[i * dim:(i + 1) * dim]]
        for d in range(dim):
            # One bf16 ulp at the larger of the result and the stream.
            largest = max(abs(want[d]), 1.0)
            ulp = math.ldexp(1.0, math.frexp(largest)[1] - 8)
            if abs(want[d] - got[d]) > ulp:
                raise Failure(f"gate: token {i % tokens} element {d}: "
                              f"{got[d]} instead of {want[d]}")
    return len(LAYERS) * tokens


def table_memory(pid, instance):
    """(RSS, PSS) in bytes of the mappings of this instance's segments."""
    rss = pss = 0
    ours = False
    with open(f"/proc/{pid}/smaps") as f:
        for line in f:
            fields = line.split()
            if "-" in fields[0] and not fields[0].endswith(":"):
                ours = f"engramd.{instance}." in line and ".g" in line
            elif ours and fields[0] == "Rss:":
                rss += int(fields[1]) * 1024
            elif ours and fields[0] == "Pss:":
                pss += int(fields[1]) * 1024
    return rss, pss


def mib(size):
    return f"{size / 2**20:.1f} MiB"


def engramctl(socket, *words):
    command = [BIN / "engramctl", "--socket", socket, *words]
    if subprocess.run(command).returncode:
        raise Failure("engramctl " + " ".join(words) + " failed")


def wait_for(path, process):
    for _ in range(500):
        if path.exists():
            return
        if process.poll() is not None:
            raise Failure(f"engramd ended with {process.returncode}")
        time.sleep(0.02)
    raise Failure(f"{path} did not appear within 10 s")


def leftovers(instance):
    return [n for n in os.listdir("/dev/shm")
            if n.startswith(f"engramd.{instance}.")]


def write_config(work, instance, checkpoint, socket):
    config = json.loads(
        (pathlib.Path(__file__).parent / "engramd.json").read_text())
    config["instance"] = instance
    config["socket"]["path"] = str(socket)
    config["tables"][0]["checkpoint"] = str(checkpoint)
    path = work / "engramd.json"
    path.write_text(json.dumps(config, indent=2) + "\n")
    return path


def start_clients(work, socket, clients):
    for n in range(2):
        clients.append(subprocess.Popen(
            [BUILD / "tests" / "quickstart_client", socket, "demo", TEXT,
             work / f"client{n}.bin"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
    metas = []
    for client in clients:
        line = client.stdout.readline()
        if not line:
            raise Failure("a client gave no result")
        metas.append(json.loads(line))
    return metas


def stop(process, what):
    try:
        code = process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        raise Failure(f"{what} did not stop within 20 s") from None
    if code:
        raise Failure(f"{what} ended with {code}")


def drive(work, instance, running):
    directory, socket = work / "checkpoint", work / "engramd.sock"
    step("engram-synth: a checkpoint laid out like the released model's")
    if subprocess.run(
            [BIN / "engram-synth", "--layers", ",".join(map(str, LAYERS)),
             "--engram-vocab-size", "40000", "--heads", "8", "--max-ngram",
             "4", "--dim", "256", "--shards", "3", "--vocab-size", "1024",
             "--compressed-vocab-size", "700", directory]).returncode:
        raise Failure("engram-synth failed")
    checkpoint = Checkpoint(directory)

    step("engramd: one sidecar for the node")
    config = write_config(work, instance, directory, socket)
    with open(work / "engramd.log", "wb") as log:
        sidecar = subprocess.Popen([BIN / "engramd", "-c", config],
                                   stderr=log)
    running.append(sidecar)
    wait_for(socket, sidecar)
    engramctl(socket, "load", "demo")
    engramctl(socket, "tables")

    step("two processes attach, hash the text, look up, gate")
    clients = []
    try:
        metas = start_clients(work, socket, clients)
        results = [read_results(work / f"client{n}.bin", meta)
                   for n, meta in enumerate(metas)]
        engramctl(socket, "clients")
        memory = {"engramd": table_memory(sidecar.pid, instance)}
        for meta in metas:
            memory[f"client {meta['pid']}"] = table_memory(meta["pid"],
                                                           instance)
    finally:
        for client in clients:
            client.stdin.close()
        for client in clients:
            stop(client, "a client")
    if results[0] != results[1]:
        raise Failure("the two clients got different results")
    if any(meta["misses"] for meta in metas):
        raise Failure("some ids found no row")
    ids, rows, out = results[0]
    checked = check_rows(checkpoint, ids, rows, metas[0]["dim"])
    gated = check_gate(rows, out, metas[0])

    table = checkpoint.data_bytes()
    total = sum(pss for _, pss in memory.values())
    if min(rss for rss, _ in memory.values()) < table:
        raise Failure("a process did not map the whole table")
    if total > 1.05 * table + (16 << 20):
        raise Failure(f"{mib(total)} resident for a table of {mib(table)}: "
                      "it is not one copy")

    step("stop")
    sidecar.terminate()
    stop(sidecar, "engramd")
    running.clear()
    if leftovers(instance) or socket.exists():
        raise Failure("engramd left something behind")
    return checked, gated, table, memory, total


def summary(checked, gated, table, memory, total, seconds):
    step("summary")
    print(f"rows equal to the checkpoint's bytes   {checked} of {checked}")
    print("gated positions within one bf16 ulp of a float64 model   "
          f"{gated} of {gated}")
    print(f"table in the checkpoint   {mib(table)}")
    print("table memory by process   resident (RSS), its share (PSS):")
    for name, (rss, pss) in memory.items():
        print(f"    {name:16}  {mib(rss):>10}  {mib(pss):>10}")
    print(f"    sum of shares   {mib(total)}: {total / table:.2f} copies for "
          f"{len(memory)} processes")
    print(f"left in /dev/shm   nothing\ntime   {seconds:.1f} s")


def main():
    start = time.monotonic()
    instance = f"quickstart-{os.getpid()}"
    work = pathlib.Path(tempfile.mkdtemp(prefix="engram-quickstart-"))
    running = []
    try:
        summary(*drive(work, instance, running), time.monotonic() - start)
    except Failure as failure:
        log = work / "engramd.log"
        if log.exists():
            print(f"engramd's log:\n{log.read_text()}", file=sys.stderr)
        print(f"quickstart: {failure}", file=sys.stderr)
        return 1
    finally:
        for process in running:
            process.kill()
            process.wait()
        # A sidecar that had to be killed can not clean up itself.
        for name in leftovers(instance):
            os.unlink(f"/dev/shm/{name}")
        shutil.rmtree(work)
    print("quickstart: ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
