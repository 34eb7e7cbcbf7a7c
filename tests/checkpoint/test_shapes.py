# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of every layout that engram-synth writes, and one of the
released model's size."""
import json
import os
import pathlib
import struct
import subprocess

import pytest

TOP = pathlib.Path(__file__).parent.parent.parent
BUILD = pathlib.Path(os.environ.get("ENGRAM_BUILD", "build")).resolve()
REAL = json.loads(
    (TOP / "tests/golden/deepseek_v41_flash_layout.json").read_text())


def probe(directory):
    run = subprocess.run([BUILD / "tests/checkpoint_probe", directory],
                         capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout
    return run.stdout


@pytest.mark.parametrize("options", [
    (), ("--flat",), ("--single-file",), ("--u8",), ("--split-scales",),
    ("--prefix", "model.layers"), ("--shards", "9"), ("--layers", "3"),
    ("--heads", "3", "--max-ngram", "2", "--dim", "32", "--pad-id", "7")],
    ids=" ".join)
def test_synthetic(options, tmp_path):
    """What the probe finds is where the file says the tensor is."""
    directory = tmp_path / "checkpoint"
    subprocess.run([BUILD / "bin/engram-synth", "--engram-vocab-size", "50",
                    "--vocab-size", "64", "--compressed-vocab-size", "40",
                    *options, directory], check=True, capture_output=True)
    found = 0
    layer = None
    for line in probe(directory).splitlines():
        if line.startswith("layer"):
            layer = line.split()[1].rstrip(":")
        if not line.startswith("  "):
            continue
        kind, file, offset, size = line.split()
        data = (directory / file).read_bytes()
        length, = struct.unpack("<Q", data[:8])
        header = json.loads(data[8:8 + length])
        entry, = [v for k, v in header.items()
                  if k.endswith(f"layers.{layer}.engram.embed.{kind}")]
        begin, end = entry["data_offsets"]
        assert int(offset) == 8 + length + begin
        assert int(size) == end - begin
        found += 1
    assert found >= 2


def sparse_shard(path, tensors):
    """A safetensors file of full size that takes no room."""
    header, at = {}, 0
    for name, dtype, rows, width in tensors:
        header[name] = {"dtype": dtype, "shape": [rows, width],
                        "data_offsets": [at, at + rows * width]}
        at += rows * width
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        try:
            file.truncate(8 + len(text) + at)
        except OSError as error:
            pytest.skip(f"no file of {at} bytes here: {error}")


def test_released_geometry(tmp_path):
    """189 GiB of tables: only headers are read, and the rows are those that
    the primes add up to."""
    layers = [1, 14]
    config = {"text_config": {
        "engram_layer_ids": layers, "engram_num_embeddings": REAL["rows"],
        "engram_max_ngram_size": 4, "engram_n_heads": 8,
        "engram_head_dim": 256, "engram_vocab_size": 16000000,
        "engram_compressed_vocab_size": 99092, "engram_pad_token_id": 2,
        "hidden_size": 5120, "hc_mult": 4, "rms_norm_eps": 1e-20,
        "vocab_size": 129280}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    weight_map = {}
    for layer, rows, number in zip(layers, REAL["rows"], (47, 48)):
        file = f"model-000{number}-of-00048.safetensors"
        names = [f"layers.{layer}.engram.embed.{k}"
                 for k in ("weight", "scale")]
        sparse_shard(tmp_path / file, [(names[0], "F8_E4M3", rows, 256),
                                       (names[1], "F8_E8M0", rows, 8)])
        weight_map |= dict.fromkeys(names, file)
    # What the index names besides is not looked into.
    weight_map["embed.weight"] = "model-00001-of-00048.safetensors"
    (tmp_path / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": weight_map}))
    out = probe(tmp_path)
    assert [line for line in out.splitlines() if "rows" in line] == [
        "layer 1: 384006168 rows", "layer 14: 384016682 rows"]
