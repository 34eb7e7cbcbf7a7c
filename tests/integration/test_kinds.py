# SPDX-License-Identifier: Apache-2.0
"""Tables of other kinds than the released model's, by configuration: loaded,
attached, hashed and looked up as the plain Python model says."""
import copy
import json
import os
import random
import struct
import subprocess

import pytest

import engramd
import kinds

EXAMPLES = engramd.ROOT / "config" / "examples"
CTL = engramd.BUILD / "bin" / "engramctl"


def small(table, vocab=300, start=40):
    """The same kind of table, a few thousand rows large."""
    table = copy.deepcopy(table)
    hash_ = table["hash"]
    hash_["vocab_size"] = vocab
    hash_["pad_id"] %= vocab
    if "cut_tokens" in hash_:
        hash_["cut_tokens"] = [t % vocab for t in hash_["cut_tokens"]]
    if "compressed_vocab_size" in hash_:
        hash_["compressed_vocab_size"] = vocab * 3 // 4
    if "prime_start" in hash_:
        hash_["prime_start"] = start
    return table


def example(name):
    table, = json.loads((EXAMPLES / f"{name}.json").read_text())["tables"]
    return small(table)


HASH = {"layers": [2], "max_ngram": 3, "heads": 2, "ids": "raw",
        "vocab_size": 300, "pad_id": 7, "prime_start": 50}


def kind(rows, **hash_):
    return {"name": "kind", "rows": rows, "hash": {**HASH, **hash_}}


KINDS = {
    "engram-27b": example("engram-27b"),
    "qwen-ple": example("qwen-ple"),
    "parts and block scales": {
        **kind({"dim": 64, "multiple": 100}, layers=[3, 9]),
        "tensors": {"weight": ["w.{layer}.{part}"],
                    "scale": ["s.{layer}.part-{part}.scale"]}},
    "bf16 in parts": {**kind({"dim": 80, "dtype": "bf16"}, layers=[9]),
                      "tensors": {"weight": ["{part}.of.{layer}"]}},
    "wide bf16": kind({"dim": 1280, "dtype": "bf16"}),
    "bf16 with one scale": kind({"dim": 32, "dtype": "bf16",
                                 "scale": "tensor"}),
    "bf16 with block scales": kind({"dim": 64, "dtype": "bf16",
                                    "scale": "ue8m0", "block": 16}),
    "fp8 without scales": kind({"dim": 96, "scale": "none"}),
    "a given scale": kind({"dim": 32, "scale": "tensor",
                           "tensor_scale": 0.0123}),
    "blocks of 128": kind({"dim": 256, "block": 128}),
    "blocks of 8": kind({"dim": 40, "block": 8, "multiple": 1000}),
    "texts that end": kind({"dim": 32}, max_ngram=4,
                           cut_tokens=[299, 12, 30, 31]),
    "compressed texts that end": kind(
        {"dim": 32}, ids="compressed", compressed_vocab_size=40, max_ngram=5,
        cut_tokens=[12, 13]),
    "trigrams only": kind({"dim": 32}, min_ngram=3, heads=5),
    "from single tokens on": kind({"dim": 32}, min_ngram=1, max_ngram=2),
    "moduli that are no primes": kind(
        {"dim": 32}, prime_start=None, layers=[5, 3], max_ngram=2, heads=3,
        moduli=[[100, 6, 1], [64, 64, 99]],
        multipliers=[[1, (1 << 63) // 299 - 1], [12345678901, 3]]),
}
for _table in KINDS.values():
    if _table["hash"].get("prime_start", 1) is None:
        del _table["hash"]["prime_start"]


def ctl(sidecar, *words):
    run = subprocess.run([CTL, "--socket", sidecar.socket, "--json", *words],
                         capture_output=True, text=True, check=False,
                         timeout=engramd.DEADLINE)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def hashed(sidecar, name, tokens):
    out = ctl(sidecar, "hash", name, "--tokens",
              ",".join(map(str, tokens)))
    return {layer["layer_id"]: layer["ids"] for layer in out["layers"]}


@pytest.mark.parametrize("layout", ["packed", "split"])
@pytest.mark.parametrize("name", KINDS)
def test_end_to_end(name, layout, make, tmp_path):
    table = {**KINDS[name], "layout": layout}
    model = kinds.Model(table)
    table["checkpoint"] = str(model.write(tmp_path / "checkpoint"))
    sidecar = make([{**table, "load": "on_demand"}])
    sidecar.client().load(table["name"])
    rng = random.Random(name)
    for count in (1, 2, 40):
        tokens = rng.choices(range(model.hash["vocab_size"]), k=count)
        tokens[0] = model.hash["vocab_size"] - 1
        for at in range(3, count, 5):
            tokens[at] = rng.choice(model.hash.get("cut_tokens", tokens))
        got = hashed(sidecar, table["name"], tokens)
        assert list(got) == model.hash["layers"]
        for layer in got:
            assert got[layer] == model.ids(layer, tokens)
    for layer, stored in model.tables.items():
        numbers = [0, stored.rows - 1] + [rng.randrange(stored.rows)
                                          for _ in range(10)]
        out = ctl(sidecar, "lookup", table["name"], "--layer", str(layer),
                  "--ids", ",".join(map(str, [*numbers, stored.rows])))
        assert out["misses"] == 1  # what fills the tensor up is no row
        for number, row in zip(numbers, out["rows"]):
            assert [int(bits, 16) for bits in row["bits"]] == \
                stored.row(number), (layer, number)


def test_one_content(make, tmp_path):
    """Layouts have one content id, another scale has another."""
    ids = {}
    table = KINDS["a given scale"]
    model = kinds.Model(table)
    table = {**table, "checkpoint": str(model.write(tmp_path / "c")),
             "load": "on_demand"}
    rows = {**table["rows"], "tensor_scale": 0.0124}
    sidecar = make([{**table, "name": "a", "layout": "packed"},
                    {**table, "name": "b", "layout": "split"},
                    {**table, "name": "c", "rows": rows}])
    client = sidecar.client()
    for name in "abc":
        client.load(name)
        ids[name] = client.table(name)["content_id"]
    assert ids["a"] == ids["b"] != ids["c"]


def test_load_with_parameters(make, tmp_path):
    """`load` takes "rows" and "hash" as the configuration does."""
    table = KINDS["qwen-ple"]
    model = kinds.Model(table)
    checkpoint = model.write(tmp_path / "checkpoint")
    sidecar = make()
    sidecar.client().load("ple", checkpoint=str(checkpoint),
                          **{k: table[k] for k in ("tensors", "rows",
                                                   "hash")})
    assert hashed(sidecar, "ple", [1, 2, 3])[1] == model.ids(1, [1, 2, 3])


def test_examples_are_the_real_tables():
    """Rows and parameters as published: 5.7 billion in two layers of the
    paper's model; 128 tensors of 2,500,012 rows of Qwen's."""
    engram, = json.loads((EXAMPLES / "engram-27b.json").read_text())["tables"]
    rows = kinds.Geometry(engram["hash"]).rows
    assert list(rows) == [2, 15]
    assert round(sum(rows.values()) * engram["rows"]["dim"] / 1e8) == 58
    columns = kinds.Geometry(engram["hash"]).cols
    assert columns * engram["rows"]["dim"] == 1280
    ple, = json.loads((EXAMPLES / "qwen-ple.json").read_text())["tables"]
    rows, multiple = (kinds.Geometry(ple["hash"]).rows[1],
                      ple["rows"]["multiple"])
    assert -(-rows // multiple) * multiple == 128 * 2500012


def test_parts_missing(shared, tmp_path):
    """One in the middle, and those at the end."""
    table = KINDS["bf16 in parts"]
    model = kinds.Model(table)
    for missing in ("3.of.9", "6.of.9"):
        tensors = model.tensors()
        have = sum(tensors[f"{part}.of.9"][1][0]
                   for part in range(int(missing[0])))
        del tensors[missing]
        client = shared.client()
        job = client.finish(client.call(
            "load", table="bad", rows=table["rows"], hash=table["hash"],
            tensors=table["tensors"], checkpoint=str(model.write(
                tmp_path / missing, tensors)))["job"])
        error = job["error"]
        assert error["data"]["name"] == "GeometryMismatch"
        assert (f'{have} rows in {missing[0]} parts, the hash needs '
                f'{model.tables[9].rows}; no "{missing}"') in error["message"]
        assert "download" in error["data"]["fix"]


def test_many_scales_for_one(shared, tmp_path):
    table = kind(TENSOR)
    model = kinds.Model(table)
    tensors = model.tensors()
    tensors["s.0.2"] = ("F32", [], ONE)
    client = shared.client()
    job = client.finish(client.call(
        "load", table="bad", rows=table["rows"], hash=table["hash"],
        tensors={"scale": ["s.{part}.{layer}"]},
        checkpoint=str(model.write(tmp_path / "c", tensors)))["job"])
    assert '"s.0.2": one of many scales' in job["error"]["message"]


# ---- what is refused ----

def change(name, **changes):
    """A tensor of layer 2, changed."""
    def apply(tensors):
        dtype, shape, data = tensors[name]
        tensors[name] = (changes.get("dtype", dtype),
                         changes.get("shape", shape),
                         changes.get("data", data))
    return apply


def add(name, *tensor):
    return lambda tensors: tensors.__setitem__(name, tensor)


W, S = "layers.2.engram.embed.weight", "layers.2.engram.embed.scale"
ONE = struct.pack("<f", 1.0)
TENSOR = {"dim": 32, "scale": "tensor"}
REFUSED = {
    "fp8 where bf16 is said": (
        {"dim": 32, "dtype": "bf16"},
        lambda t: t.__setitem__(W, ("F8_E4M3", t[W][1], t[W][2][::2])),
        "CheckpointInvalid", "dtype F8_E4M3, must be BF16"),
    "U8 where bf16 is said": (
        {"dim": 32, "dtype": "bf16"},
        lambda t: t.__setitem__(W, ("U8", t[W][1], t[W][2][::2])),
        "CheckpointInvalid", "dtype U8, must be BF16"),
    "a scale that nothing uses": (
        {"dim": 32, "scale": "none"}, add(S, "F32", [], ONE),
        "CheckpointInvalid", 'a scale, but "rows" has the scale "none"'),
    "a scale beside a given one": (
        {**TENSOR, "tensor_scale": 2}, add(S, "F32", [], ONE),
        "CheckpointInvalid", 'a scale, but "rows" has a tensor_scale'),
    "no scale": (TENSOR, lambda t: t.pop(S), "CheckpointInvalid",
                 "no scale tensor"),
    "many scales": (TENSOR, change(S, shape=[2], data=ONE * 2),
                    "CheckpointInvalid",
                    "dimension 0 is 2, must be one number"),
    "a scale of another dtype": (
        TENSOR, change(S, dtype="F64", data=bytes(8)),
        "CheckpointInvalid", "dtype F64, must be F32 or BF16"),
    "a scale of zero": (TENSOR, change(S, data=bytes(4)),
                        "CheckpointInvalid", "the scale is 0, must be"),
    "a scale that is NaN": (TENSOR, change(S, data=b"\0\0\xc0\x7f"),
                            "CheckpointInvalid", "the scale is nan, must be"),
    "a negative scale": (TENSOR, change(S, data=struct.pack("<f", -1)),
                         "CheckpointInvalid", "the scale is -1, must be"),
    "block scales for one": (
        TENSOR, change(S, dtype="F8_E8M0", shape=[4, 1], data=ONE),
        "CheckpointInvalid", "dtype F8_E8M0, must be F32 or BF16"),
    "rows not filled up": (
        {**TENSOR, "multiple": 1024},
        lambda t: t.__setitem__(W, ("F8_E4M3", [1000, 32], bytes(32000))),
        "GeometryMismatch", "filled up to 1024"),
    "other blocks": (
        {"dim": 64, "block": 16},
        lambda t: t.__setitem__(S, ("F8_E8M0", [t[S][1][0], 2],
                                    t[S][2][::2])),
        "CheckpointInvalid", "rows of 2 elements, must be 4"),
}


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    sidecar = engramd.Sidecar(tmp_path_factory.mktemp("sidecar"))
    yield sidecar
    sidecar.stop()


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name, shared, tmp_path):
    rows, spoil, status, message = REFUSED[name]
    table = kind(rows)
    model = kinds.Model(table)
    tensors = model.tensors()
    spoil(tensors)
    checkpoint = model.write(tmp_path / "checkpoint", tensors)
    client = shared.client()
    job = client.finish(client.call(
        "load", table="bad", checkpoint=str(checkpoint), rows=rows,
        hash=table["hash"])["job"])
    assert job["state"] == "failed"
    assert job["error"]["data"]["name"] == status, job
    assert message in job["error"]["message"]
    assert job["error"]["data"]["fix"]


@pytest.mark.parametrize("dtype, data", [
    ("F32", struct.pack("<f", 0.5)), ("BF16", b"\x00\x3f")])
@pytest.mark.parametrize("shape", [[], [1], [1, 1]], ids=str)
def test_scale_tensor(dtype, data, shape, make, tmp_path):
    """One number, whatever its rank; at any place of the file."""
    table = kind(TENSOR)
    model = kinds.Model(table)
    tensors = {"odd": ("U8", [3], b"abc"), **model.tensors()}
    tensors[S] = (dtype, shape, data)
    model.tables[2].factor = 0.5
    sidecar = make()
    sidecar.client().load(
        "t", checkpoint=str(model.write(tmp_path / "c", tensors)),
        rows=table["rows"], hash=table["hash"])
    out = ctl(sidecar, "lookup", "t", "--layer", "2", "--ids", "5")
    assert [int(b, 16) for b in out["rows"][0]["bits"]] == \
        model.tables[2].row(5)


def test_config_json_is_not_asked(make, tmp_path):
    """With "hash", config.json may say what it likes, and is watched."""
    table = KINDS["trigrams only"]
    model = kinds.Model(table)
    checkpoint = model.write(tmp_path / "checkpoint")
    (checkpoint / "config.json").write_text(json.dumps(
        {"engram_layer_ids": "none", "hidden_size": 64}))
    sidecar = make()
    client = sidecar.client()
    more = {"rows": table["rows"], "hash": table["hash"]}
    client.load("t", checkpoint=str(checkpoint), **more)
    assert hashed(sidecar, "t", [9])[2] == model.ids(2, [9])
    os.truncate(checkpoint / "config.json", 5)
    job = client.finish(client.call("load", table="u",
                                    checkpoint=str(checkpoint),
                                    **more)["job"])
    assert job["error"]["data"]["name"] == "CheckpointInvalid"


def test_tokmap_of_raw_ids(make, tmp_path):
    """A map there is, of each id to itself: it is shown as none, and can be
    compared and exported."""
    table = KINDS["qwen-ple"]
    model = kinds.Model(table)
    sidecar = make([{**table, "load": "on_demand", "checkpoint":
                     str(model.write(tmp_path / "checkpoint"))}])
    sidecar.client().load("qwen-ple")
    answer = ctl(sidecar, "tokmap", "qwen-ple")
    assert answer["identity"] is True and answer["merged"] == []
    assert answer["pad_id"] == table["hash"]["pad_id"]
    file = tmp_path / "map.json"
    ctl(sidecar, "tokmap", "qwen-ple", "--export", str(file))
    assert json.loads(file.read_text()) == {"token_map": list(range(300))}
    assert ctl(sidecar, "tokmap", "qwen-ple", "--diff", str(file))["equal"]
    run = subprocess.run([CTL, "--socket", sidecar.socket, "tokmap",
                          "qwen-ple"], capture_output=True, text=True,
                         check=True, timeout=engramd.DEADLINE)
    assert "compressed ids  none: each raw id is its own\n" in run.stdout
    assert "(compressed)" not in run.stdout


def test_token_map_elsewhere(make, tmp_path):
    """A map that is named by its whole path."""
    table = copy.deepcopy(KINDS["engram-27b"])
    model = kinds.Model(table)
    table["checkpoint"] = str(model.write(tmp_path / "checkpoint"))
    file = tmp_path / "map.json"
    (tmp_path / "checkpoint/engram_token_map.json").rename(file)
    sidecar = make([{**table, "load": "on_demand", "token_map": str(file)}])
    sidecar.client().load(table["name"])
    assert hashed(sidecar, table["name"], [4, 5])[2] == model.ids(2, [4, 5])


def test_cut_token_outside_the_map(shared, tmp_path):
    """The model's vocabulary may be larger than its map."""
    table = kind({"dim": 32}, ids="compressed", compressed_vocab_size=200,
                 vocab_size=300, cut_tokens=[299])
    model = kinds.Model(table)
    model.map = list(range(200))
    client = shared.client()
    job = client.finish(client.call(
        "load", table="bad", rows=table["rows"], hash=table["hash"],
        checkpoint=str(model.write(tmp_path / "checkpoint")))["job"])
    assert job["error"]["data"]["name"] == "GeometryMismatch"
    assert job["error"]["data"]["path"] == "hash.cut_tokens"


def test_cuts_are_content(make, tmp_path):
    """Other cuts are other content, and another table to adopt."""
    table = KINDS["texts that end"]
    model = kinds.Model(table)
    where = {"checkpoint": str(model.write(tmp_path / "c")),
             "load": "on_demand"}
    other = {**table["hash"], "cut_tokens": [298, 12, 30, 31]}
    sidecar = make([{**table, **where, "name": "a"},
                    {**table, **where, "name": "b", "hash": other}])
    client = sidecar.client()
    client.load("a")
    client.load("b")
    assert client.table("a")["content_id"] != client.table("b")["content_id"]


def test_layers_of_it(make, tmp_path):
    """The table's own "layers" chooses among those of the hash."""
    table = {**KINDS["engram-27b"], "layers": [15], "load": "on_demand"}
    model = kinds.Model(table)
    table["checkpoint"] = str(model.write(tmp_path / "checkpoint"))
    sidecar = make([table])
    sidecar.client().load("engram-27b")
    got = hashed(sidecar, "engram-27b", [4, 5, 6])
    assert got == {15: model.ids(15, [4, 5, 6])}
