# SPDX-License-Identifier: Apache-2.0
"""Tables of any kind, in plain Python: checkpoints with random rows, the row
numbers of a text, and rows as bf16.  Slow, and written from the formulas in
engramd.json(5) and kernels/, not from the code."""
import json
import random
import struct

PARTS, FILES = 7, 3
M32, M64, M128 = (1 << 32) - 1, (1 << 64) - 1, (1 << 128) - 1


# ---- numpy.random.default_rng(seed).integers(0, bound, size=count) ----

def _seed_words(entropy, count):
    """SeedSequence: `count` 32-bit words."""
    words = [entropy & M32, entropy >> 32 & M32, 0, 0]
    const = 0x43b0d7e5

    def hashed(value):
        nonlocal const
        value ^= const
        const = const * 0x931e8875 & M32
        value = value * const & M32
        return value ^ value >> 16

    pool = [hashed(w) for w in words]
    for source in range(4):
        for to in range(4):
            if source != to:
                mixed = (0xca01f9dd * pool[to] -
                         0x4973f715 * hashed(pool[source])) & M32
                pool[to] = mixed ^ mixed >> 16
    const, out = 0x8b51f9dd, []
    for i in range(count):
        value = pool[i % 4] ^ const
        const = const * 0x58f38ded & M32
        value = value * const & M32
        out.append(value ^ value >> 16)
    return out


def numpy_integers(seed, bound, count):
    assert bound > 1 << 32  # smaller ones are drawn otherwise
    w = _seed_words(seed, 8)
    a, b, c, d = (w[i] | w[i + 1] << 32 for i in (0, 2, 4, 6))
    factor = 0x2360ed051fc65da44385df649fccf645
    step = ((c << 64 | d) << 1 | 1) & M128
    state = ((step + (a << 64 | b)) * factor + step) & M128
    out = []
    while len(out) < count:
        state = (state * factor + step) & M128
        value, turn = (state >> 64 ^ state) & M64, state >> 122
        value = (value >> turn | value << (64 - turn)) & M64
        if value * bound & M64 >= (1 << 64) % bound:
            out.append(value * bound >> 64)
    return out


# ---- geometry ----

def is_prime(n):
    return n > 1 and all(n % k for k in range(2, int(n ** 0.5) + 1))


class Geometry:
    """Moduli, offsets and multipliers by layer id."""

    def __init__(self, hash_):
        self.min = hash_.get("min_ngram", 2)
        self.max = hash_["max_ngram"]
        self.heads = hash_["heads"]
        self.cols = (self.max - self.min + 1) * self.heads
        self.moduli, self.multipliers, self.rows = {}, {}, {}
        at = hash_.get("prime_start")
        vocab = hash_.get("compressed_vocab_size", hash_["vocab_size"])
        for i, layer in enumerate(hash_["layers"]):
            moduli = []
            while "prime_start" in hash_ and len(moduli) < self.cols:
                if is_prime(at):
                    moduli.append(at)
                at += 1
            self.moduli[layer] = moduli or hash_["moduli"][i]
            self.rows[layer] = sum(self.moduli[layer])
            if "multipliers" in hash_:
                self.multipliers[layer] = hash_["multipliers"][i]
            else:
                bound = ((1 << 63) - 1) // vocab // 2
                self.multipliers[layer] = [2 * x + 1 for x in numpy_integers(
                    10007 * layer, bound, self.max)]

    def ids(self, layer, tokens, pad, cuts=()):
        """tokens: compressed, oldest first; a list of row numbers for each
        token."""
        out = []
        for at in range(len(tokens)):
            rolling, row, ended = 0, [], False
            for back in range(self.max):
                value = tokens[at - back] if back <= at else pad
                ended = ended or back > 0 and value in cuts
                value = pad if ended else value
                rolling ^= value * self.multipliers[layer][back]
                if back + 1 < self.min:
                    continue
                first = (back + 1 - self.min) * self.heads
                for col in range(first, first + self.heads):
                    row.append(rolling % self.moduli[layer][col] +
                               sum(self.moduli[layer][:col]))
            out.append(row)
        return out


# ---- rows ----

def fp32(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


def bf16_bits(value):
    """Of an fp32, to the nearest, ties to even."""
    bits, = struct.unpack("<I", struct.pack("<f", value))
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16


def e4m3(code):
    sign = -1.0 if code & 0x80 else 1.0
    exponent, mantissa = code >> 3 & 15, code & 7
    if exponent == 0:
        return sign * mantissa * 2.0 ** -9
    return sign * (8 + mantissa) * 2.0 ** (exponent - 10)


class Table:
    """Random codes and scales of one layer; as bf16 with row()."""

    def __init__(self, rows, stored, format_, seed):
        rng = random.Random(seed)
        self.dim = format_["dim"]
        self.bf16 = format_.get("dtype") == "bf16"
        self.scheme = format_.get("scale", "none" if self.bf16 else "ue8m0")
        self.block = format_.get("block", 32)
        self.rows, self.stored = rows, stored
        # Neither NaN nor infinity, which no table has.
        if self.bf16:
            codes = [rng.randrange(1 << 16) & 0xbfff
                     for _ in range(stored * self.dim)]
            self.codes = struct.pack(f"<{len(codes)}H", *codes)
        else:
            self.codes = bytes(c if c & 0x7f != 0x7f else 0 for c in
                               rng.randbytes(stored * self.dim))
        self.scales = bytes(rng.randrange(100, 140) for _ in range(
            stored * (self.dim // self.block)))
        self.given = "tensor_scale" in format_
        self.factor = format_.get("tensor_scale",
                                  fp32(rng.uniform(0.001, 0.01)))

    def row(self, number):
        assert 0 <= number < self.rows
        out = []
        for i in range(number * self.dim, (number + 1) * self.dim):
            if self.bf16:
                bits = struct.unpack_from("<H", self.codes, 2 * i)[0]
                value, = struct.unpack("<f", struct.pack("<I", bits << 16))
            else:
                value = e4m3(self.codes[i])
            if self.scheme == "tensor":
                value = fp32(value * fp32(self.factor))
            elif self.scheme == "ue8m0":
                value *= 2.0 ** (self.scales[i // self.block] - 127)
            out.append(bf16_bits(value))
        return out

    def tensors(self, weight, scale):
        """name -> (dtype, shape, bytes)"""
        out = {weight: ("BF16" if self.bf16 else "F8_E4M3",
                        [self.stored, self.dim], self.codes)}
        if self.scheme == "ue8m0":
            out[scale] = ("F8_E8M0", [self.stored, self.dim // self.block],
                          self.scales)
        elif self.scheme == "tensor" and not self.given:
            out[scale] = ("F32", [], struct.pack("<f", self.factor))
        return out


def write_safetensors(path, tensors):
    header, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape,
                        "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(
        data for _, _, data in tensors.values()))


def in_parts(name, dtype, shape, data):
    """A tensor with "{part}" in its name, as several of many sizes."""
    if "{part}" not in name:
        return {name: (dtype, shape, data)}
    rows, begin, out = shape[0], 0, {}
    size = len(data) // rows
    for part in range(PARTS):
        end = rows if part == PARTS - 1 else rows * part * part // PARTS ** 2
        out[name.replace("{part}", str(part))] = (
            dtype, [end - begin, *shape[1:]], data[begin * size:end * size])
        begin = end
    return out


class Model:
    """A checkpoint for a table of the configuration, and what must come out
    of it."""

    def __init__(self, table, seed=1):
        self.config = table
        self.hash = table["hash"]
        self.geometry = Geometry(self.hash)
        rng = random.Random(seed)
        size = self.hash["vocab_size"]
        small = self.hash.get("compressed_vocab_size", size)
        self.map = list(range(size))
        if self.hash.get("ids") != "raw":
            self.map = list(range(small)) + [rng.randrange(small) for _ in
                                             range(size - small)]
            rng.shuffle(self.map)
        multiple = table["rows"].get("multiple", 1)
        self.tables = {}
        for layer, rows in self.geometry.rows.items():
            stored = -(-rows // multiple) * multiple
            self.tables[layer] = Table(rows, stored, table["rows"],
                                       seed + layer)

    def tensors(self):
        names = self.config.get("tensors", {})
        weight = names.get("weight", ["layers.{layer}.engram.embed.weight"])
        scale = names.get("scale", ["layers.{layer}.engram.embed.scale"])
        out = {}
        for layer, table in self.tables.items():
            tensors = table.tensors(weight[0].replace("{layer}", str(layer)),
                                    scale[0].replace("{layer}", str(layer)))
            for name, tensor in tensors.items():
                out |= in_parts(name, *tensor)
        return out

    def write(self, directory, tensors=None):
        directory.mkdir()
        tensors = self.tensors() if tensors is None else tensors
        for i in range(FILES):
            some = dict(list(tensors.items())[i::FILES])
            if some:
                write_safetensors(directory / f"model-{i}.safetensors", some)
        if self.hash.get("ids") != "raw":
            (directory / "engram_token_map.json").write_text(
                json.dumps({"token_map": self.map}))
        return directory

    def ids(self, layer, tokens):
        return self.geometry.ids(layer, [self.map[t] for t in tokens],
                                 self.map[self.hash["pad_id"]],
                                 [self.map[t] for t in
                                  self.hash.get("cut_tokens", ())])
