# SPDX-License-Identifier: Apache-2.0
"""A small good checkpoint, to be made bad by tests/bad/checkpoint/*/make.py.

    def make(c):
        c.config["engram_n_heads"] = 0

What is changed before write() ends up in the files; `files` holds contents
that replace them (bytes), leave them out (None), or callables that get the
path and put something else there.
"""
import json
import struct

ROWS = {1: 60, 14: 120}  # sums of the primes above 10: 11 13 17 19, 23 29 ...
DIM = 64


class Checkpoint:
    def __init__(self):
        self.config = {
            "engram_layer_ids": [1, 14],
            "engram_num_embeddings": [ROWS[1], ROWS[14]],
            "engram_max_ngram_size": 3, "engram_n_heads": 2,
            "engram_head_dim": DIM, "engram_vocab_size": 10,
            "engram_compressed_vocab_size": 10, "engram_pad_token_id": 2,
            "hidden_size": 128, "hc_mult": 4, "rms_norm_eps": 1e-20,
            "vocab_size": 16}
        self.outer = {"model_type": "test", "text_config": self.config}
        self.token_map = {"token_map": [i % 10 for i in range(16)]}
        self.tokenizer = None
        self.index = {"metadata": {}, "weight_map": {}}
        # file -> tensor -> [dtype, shape, bytes]
        self.shards = {"model-00001-of-00002.safetensors": {},
                       "model-00002-of-00002.safetensors": {}}
        self.files = {}
        self.lengths = {}  # file -> what its first 8 bytes say
        for file, layer in zip(self.shards, ROWS):
            self.add(file, f"other.{layer}", "U8", [37])
            self.add(file, self.weight(layer), "F8_E4M3", [ROWS[layer], DIM])
            self.add(file, self.scale(layer), "F8_E8M0",
                     [ROWS[layer], DIM // 32])

    first = property(lambda self: "model-00001-of-00002.safetensors")
    second = property(lambda self: "model-00002-of-00002.safetensors")

    @staticmethod
    def weight(layer):
        return f"layers.{layer}.engram.embed.weight"

    @staticmethod
    def scale(layer):
        return f"layers.{layer}.engram.embed.scale"

    def add(self, file, name, dtype, shape, size=None):
        """A tensor; its size follows from the shape, an element a byte."""
        if size is None:
            size = 1
            for n in shape:
                size *= n
        self.shards[file][name] = {"dtype": dtype, "shape": shape,
                                   "size": size}
        self.index["weight_map"][name] = file

    def remove(self, name):
        for tensors in self.shards.values():
            tensors.pop(name, None)
        self.index["weight_map"].pop(name, None)

    def tensor(self, name):
        for tensors in self.shards.values():
            if name in tensors:
                return tensors[name]
        raise KeyError(name)

    def header(self, file):
        """The header as an object; "offsets" of a tensor override."""
        out, at = {"__metadata__": {"format": "pt"}}, 0
        for name, t in self.shards[file].items():
            end = at + t["size"]
            entry = {"dtype": t["dtype"], "shape": t["shape"],
                     "data_offsets": t.get("offsets", [at, end])}
            out[name] = {k: v for k, v in entry.items()
                         if k not in t.get("without", ())}
            at = end
        return out

    def shard(self, file, header=None):
        """The bytes of a safetensors file."""
        if header is None:
            header = json.dumps(self.header(file)).encode()
        size = sum(t["size"] for t in self.shards[file].values())
        length = self.lengths.get(file, len(header))
        return struct.pack("<Q", length) + header + bytes(size)

    def single_file(self):
        """model.safetensors with everything, and no index."""
        tensors = {}
        for shard in self.shards.values():
            tensors |= shard
        self.shards = {"model.safetensors": tensors}
        self.files["model.safetensors.index.json"] = None

    def use_tokenizer(self):
        """tokenizer.json instead of a map; a..j are its 10 tokens."""
        self.files["engram_token_map.json"] = None
        self.tokenizer = {
            "version": "1.0", "added_tokens": [],
            "decoder": {"type": "ByteLevel"},
            "model": {"type": "BPE", "merges": [],
                      "vocab": {chr(97 + i): i for i in range(10)}}}

    def write(self, directory):
        contents = {file: self.shard(file) for file in self.shards}
        contents["config.json"] = json.dumps(self.outer, indent=1).encode()
        contents["engram_token_map.json"] = json.dumps(self.token_map).encode()
        contents["model.safetensors.index.json"] = json.dumps(
            self.index, indent=1).encode()
        if self.tokenizer:
            contents["tokenizer.json"] = json.dumps(
                self.tokenizer, indent=1).encode()
        contents |= self.files
        directory.mkdir()
        for name, content in contents.items():
            if callable(content):
                content(directory / name)
            elif content is not None:
                (directory / name).write_bytes(content)
