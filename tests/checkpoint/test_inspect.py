# SPDX-License-Identifier: Apache-2.0
"""engramd --inspect, and engramctl inspect, which runs it."""
import json
import os
import pathlib
import resource
import shutil
import struct
import subprocess

import pytest

import builder
from test_checkpoint import BUILD, CASES, made
from test_shapes import REAL, sparse_shard
import kinds

ENGRAMD, CTL = BUILD / "bin/engramd", BUILD / "bin/engramctl"
MIB = 1 << 20


def run(*words, **kwargs):
    return subprocess.run([*map(str, words)], capture_output=True, text=True,
                          check=False, timeout=60, **kwargs)


def inspect(directory, *words, code=0, **kwargs):
    result = run(ENGRAMD, "--inspect", directory, "--json", *words, **kwargs)
    assert result.returncode == code, result.stderr
    assert result.stderr == ""
    return json.loads(result.stdout)


def expected_of(case):
    lines = (case / "expected").read_text().splitlines()
    return dict(line.split(": ", 1) for line in lines if ": " in line)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_reports_what_loading_does(case, tmp_path):
    """The first problem is the error that a load ends with, word for word."""
    module = made(case, tmp_path / "checkpoint")
    words = [w for name in getattr(module, "WORDS", ())
             for w in ("--token-map", name)]
    answer = inspect("checkpoint", *words, code=1, cwd=tmp_path)
    assert answer["loadable"] is False
    expected = expected_of(case)
    problem = answer["problems"][0]
    assert problem["name"] == expected["status"]
    assert problem["message"] == expected["message"]
    assert problem.get("fix", "") == expected["fix"]
    assert problem.get("path", "") == expected.get("path", "")
    for figure in ("needed", "available"):
        assert problem.get(figure, 0) == int(expected.get(figure, 0))
    text = run(ENGRAMD, "--inspect", "checkpoint", *words, cwd=tmp_path)
    assert text.returncode == 1
    assert f"  {expected['message']}\n    fix: {expected['fix']}\n" \
        in text.stdout


def test_all_that_is_wrong(tmp_path):
    """Faults that do not hang together are all there, each once."""
    c = builder.Checkpoint()
    c.config["engram_num_embeddings"] = [61, 121]
    c.token_map["token_map"][5] = -1
    c.tensor(c.weight(1))["dtype"] = "F16"
    c.tensor(c.weight(1))["size"] *= 2
    c.remove(c.scale(1))
    c.tensor(c.scale(14))["dtype"] = "I8"
    c.write(tmp_path / "checkpoint")
    answer = inspect("checkpoint", code=1, cwd=tmp_path)
    wanted = ["layer 1: engram_num_embeddings is 61",
              "layer 14: engram_num_embeddings is 121", "token_map[5]",
              '"layers.1.engram.embed.weight": dtype F16',
              "layer 1: no scale tensor",
              '"layers.14.engram.embed.scale": dtype I8']
    assert len(answer["problems"]) == len(wanted)
    for problem, words in zip(answer["problems"], wanted):
        assert words in problem["message"]
        assert problem["fix"]
    assert [layer["layer_id"] for layer in answer["layers"]] == [1, 14]
    assert answer["layers"][1]["weight"]["name"] == c.weight(14)
    assert answer["layers"][1]["scale"] is None


def test_one_damaged_file_is_one_problem(tmp_path):
    c = builder.Checkpoint()
    c.files[c.first] = b"1234567"
    c.write(tmp_path / "checkpoint")
    answer = inspect("checkpoint", code=1, cwd=tmp_path)
    assert [p["message"] for p in answer["problems"]] == [
        f"checkpoint/{c.first}: 7 bytes: too short to be a safetensors file"]
    names = [file["name"] for file in answer["files"]]
    assert len(names) == len(set(names))


def test_not_there(tmp_path):
    answer = inspect(tmp_path / "none", code=1)
    assert answer["geometry"] is None and answer["memory"] is None
    assert answer["layers"] == [] and answer["files"] == []
    assert answer["problems"][0]["name"] == "NotFound"


def test_what_is_there(tmp_path):
    c = builder.Checkpoint()
    directory = tmp_path / "checkpoint"
    c.write(directory)
    answer = inspect(directory, "--tp-size", "2")
    assert answer["format"] == 1
    assert answer["checkpoint"] == str(directory)
    assert answer["loadable"] is True and answer["problems"] == []
    assert answer["geometry"] == {
        "min_ngram": 2, "max_ngram": 3, "heads": 2, "columns": 4,
        "dim": 64, "dtype": "fp8_e4m3", "scale": "ue8m0", "block_size": 32,
        "engram_vocab_size": 10, "compressed_vocab_size": 10,
        "vocab_size": 16, "raw_pad_id": 2, "pad_id": 2, "cut_ids": []}
    assert answer["token_map"] == {"source": "engram_token_map.json",
                                   "file": "engram_token_map.json",
                                   "entries": 16}
    for layer, (layer_id, rows) in zip(answer["layers"],
                                       builder.ROWS.items()):
        assert layer["layer_id"] == layer_id
        assert layer["rows"] == rows == sum(layer["primes"])
        assert len(layer["primes"]) == 4
        assert layer["multipliers"] == [
            2 * n + 1 for n in kinds.numpy_integers(
                10007 * layer_id, ((1 << 63) - 1) // 10 // 2, 3)]
        for kind in ("weight", "scale"):
            found = layer[kind]
            assert found["name"] == getattr(c, kind)(layer_id)
            data = (directory / found["file"]).read_bytes()
            length, = struct.unpack("<Q", data[:8])
            entry = json.loads(data[8:8 + length])[found["name"]]
            assert found["dtype"] == entry["dtype"]
            assert found["shape"] == entry["shape"]
            begin, end = entry["data_offsets"]
            assert found["offset"] == 8 + length + begin
            assert found["bytes"] == end - begin
    assert {f["name"]: f["bytes"] for f in answer["files"]} == {
        p.name: p.stat().st_size for p in directory.iterdir()}
    assert answer["disk"]["files_bytes"] == sum(
        p.stat().st_size for p in directory.iterdir())
    assert answer["disk"]["tensors_bytes"] == (60 + 120) * 66
    first, second = answer["ranks"]
    assert (first["head_begin"], first["head_end"], second["head_begin"],
            second["head_end"]) == (0, 2, 2, 4)
    assert first["rows"] + second["rows"] == 180
    assert first["bytes"] == first["rows"] * 66


def test_memory(tmp_path):
    builder.Checkpoint().write(tmp_path / "checkpoint")
    answer = inspect(tmp_path / "checkpoint")
    memory = answer["memory"]
    assert answer["ranks"] == []
    assert memory["records_bytes"] == 180 * 66
    assert memory["header_bytes"] == 2 * 2 * MIB
    assert memory["total_bytes"] == 2 * 4 * MIB
    # three small pages: 60 and 120 rows of 66 bytes
    assert memory["gpu_page_tables_bytes"] == 3 * 8
    assert answer["room"]["available_bytes"] > 0


def huge_sizes():
    """Of the pages that this kernel can set aside."""
    names = pathlib.Path("/sys/kernel/mm/hugepages").glob("hugepages-*kB")
    return sorted(int(n.name[10:-2]) * 1024 for n in names)


@pytest.mark.parametrize("layout,layers", [("packed", [4, 4]),
                                           ("split", [6, 6])])
def test_backings(layout, layers, tmp_path):
    """Whole pages, each layer in a file of its own; on hugetlbfs the control
    page takes one too."""
    builder.Checkpoint().write(tmp_path / "checkpoint")
    answer = inspect(tmp_path / "checkpoint")
    memory = answer["memory" if layout == "packed" else "memory_other_layout"]
    want = [(name, 4096, sum(layers) * MIB) for name in ("shm", "memfd")]
    for name in "hugetlbfs", "memfd":
        for page in huge_sizes():
            pages = sum(-(-n * MIB // page) for n in layers)
            want.append((name, page,
                         (pages + (name == "hugetlbfs")) * page))
    assert [(b["backing"], b["page_bytes"], b["bytes"])
            for b in memory["backings"]] == want
    for b in memory["backings"]:
        assert b["fits"] is True or (b["message"] and b["fix"])
        assert b.get("needed", b["bytes"]) == b["bytes"]
        if b.get("name") == "NotFound":  # no such mount
            kib = b["page_bytes"] // 1024
            assert b["backing"] == "hugetlbfs"
            assert f"pagesize={kib}K" in b["fix"]
            assert (f"echo {b['bytes'] // b['page_bytes']} "
                    f">/sys/kernel/mm/hugepages/hugepages-{kib}kB/"
                    in b["fix"])


def test_loads_in_as_much_as_it_says(tmp_path):
    """The segments of a load are total_bytes long."""
    import engramd  # pylint: disable=import-outside-toplevel
    model = engramd.synth(tmp_path / "model", "--engram-vocab-size", "300",
                          "--layers", "3,9")
    total = inspect(model)["memory"]["total_bytes"]
    server = engramd.Sidecar(tmp_path, [
        {"name": "demo", "checkpoint": str(model), "load": "on_demand"}])
    try:
        client = server.client()
        client.load("demo")
        assert client.table("demo")["bytes"] == total
        client.close()
    finally:
        server.stop()


def test_released_model_does_not_fit(tmp_path):
    """189 GiB: sound, and refused by a machine that is too small for it."""
    layers = [1, 14]
    config = {"engram_layer_ids": layers, "engram_num_embeddings":
              REAL["rows"], "engram_max_ngram_size": 4, "engram_n_heads": 8,
              "engram_head_dim": 256, "engram_vocab_size": 16000000,
              "engram_compressed_vocab_size": 99092,
              "engram_pad_token_id": 2, "vocab_size": 129280}
    (tmp_path / "config.json").write_text(json.dumps(config))
    for layer, rows in zip(layers, REAL["rows"]):
        sparse_shard(tmp_path / f"{layer}.safetensors", [
            (f"layers.{layer}.engram.embed.weight", "F8_E4M3", rows, 256),
            (f"layers.{layer}.engram.embed.scale", "F8_E8M0", rows, 8)])
    answer = inspect(tmp_path, "--tp-size", "8")
    records = sum(REAL["rows"]) * 264
    assert answer["loadable"] is True
    assert answer["token_map"]["source"] == "none"
    assert answer["geometry"]["pad_id"] is None
    memory = answer["memory"]
    assert memory["records_bytes"] == records
    assert 0 <= memory["gpu_page_tables_bytes"] - records / 512 <= 16
    assert len(answer["ranks"]) == 8
    assert sum(rank["rows"] for rank in answer["ranks"]) == sum(REAL["rows"])
    memfd = memory["backings"][1]
    available = answer["room"]["available_bytes"]
    if available >= memory["total_bytes"]:
        pytest.skip("this machine has the memory for it")
    assert memfd["fits"] is False and memfd["name"] == "NoSpace"
    assert memfd["needed"] == memory["total_bytes"]
    assert memfd["available"] < memfd["needed"]


def test_memlock(tmp_path):
    builder.Checkpoint().write(tmp_path / "checkpoint")
    if os.geteuid() == 0:
        if not shutil.which("setpriv"):
            pytest.skip("root is not bound by RLIMIT_MEMLOCK; no setpriv")
        words = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
    else:
        words = []
    result = run(*words, ENGRAMD, "--inspect", tmp_path / "checkpoint",
                 "--json", preexec_fn=lambda: resource.setrlimit(
                     resource.RLIMIT_MEMLOCK, (65536, 65536)))
    assert result.returncode == 0, result.stderr
    lock = json.loads(result.stdout)["memory"]["lock"]
    assert lock["fits"] is False and lock["name"] == "MemlockTooLow"
    assert lock["needed"] == 8 * MIB and lock["available"] == 65536
    assert "LimitMEMLOCK=infinity" in lock["fix"]


def test_more_ranks_than_heads(tmp_path):
    builder.Checkpoint().write(tmp_path / "checkpoint")
    answer = inspect(tmp_path / "checkpoint", "--tp-size", "5", code=1)
    assert answer["problems"][0]["message"].startswith(
        "4 heads over 5 ranks, 1 to each, leave ")
    assert len(answer["problems"]) == 1


def test_token_map_that_is_given(tmp_path):
    c = builder.Checkpoint()
    c.files["map.json"] = json.dumps(c.token_map).encode()
    c.write(tmp_path / "checkpoint")
    answer = inspect(tmp_path / "checkpoint", "--token-map", "map.json")
    assert answer["token_map"] == {"source": "given", "file": "map.json",
                                   "entries": 16}


def test_token_map_elsewhere(tmp_path):
    """By its whole path: the checkpoint's directory need not have it."""
    c = builder.Checkpoint()
    c.files["engram_token_map.json"] = None
    c.write(tmp_path / "checkpoint")
    file = tmp_path / "map.json"
    file.write_text(json.dumps(c.token_map))
    answer = inspect(tmp_path / "checkpoint", "--token-map", file)
    assert answer["token_map"] == {"source": "given", "file": str(file),
                                   "entries": 16}
    file.unlink()
    answer = inspect(tmp_path / "checkpoint", "--token-map", file, code=1)
    assert answer["problems"][0]["path"] == str(file)


def test_count_of_a_hash(tmp_path):
    """Where the number is stated is said: config.json has none here."""
    table = {"name": "t", "rows": {"dim": 32},
             "hash": {"layers": [3], "max_ngram": 2, "heads": 1,
                      "vocab_size": 300, "compressed_vocab_size": 40,
                      "pad_id": 7, "prime_start": 50}}
    table["checkpoint"] = str(kinds.Model(table).write(tmp_path / "model"))
    table["hash"]["compressed_vocab_size"] = 41
    config = tmp_path / "engramd.json"
    config.write_text(json.dumps({"tables": [table]}))
    result = run(ENGRAMD, "-c", config, "--table", "t", "--json")
    problem, = json.loads(result.stdout)["problems"]
    assert problem["message"].endswith(
        ": 40 compressed ids occur, the table's hash has "
        "compressed_vocab_size 41")
    assert (problem["needed"], problem["available"]) == (41, 40)


def test_tokenizer(tmp_path):
    """Where the map comes from is said also when it can not be used."""
    c = builder.Checkpoint()
    c.files["engram_token_map.json"] = None
    c.files["tokenizer.json"] = b'{"model": {"type": "WordPiece"}}'
    c.write(tmp_path / "checkpoint")
    answer = inspect(tmp_path / "checkpoint", code=1)
    assert answer["token_map"] == {"source": "tokenizer.json",
                                   "file": "tokenizer.json", "entries": 0}
    assert len(answer["problems"]) == 1
    assert "tokenizer.json" in answer["problems"][0]["message"]
    assert answer["memory"] is not None and len(answer["layers"]) == 2


def test_text(tmp_path):
    builder.Checkpoint().write(tmp_path / "checkpoint")
    result = run(ENGRAMD, "--inspect", tmp_path / "checkpoint",
                 "--tp-size", "4")
    assert result.returncode == 0
    lines = result.stdout.splitlines()
    assert lines[:6] == [
        f"checkpoint  {tmp_path / 'checkpoint'}", "loadable    yes",
        "rows        64 x fp8_e4m3, scale ue8m0 per 32",
        "hash        n-grams 2..3, 2 heads, 4 columns, primes from 10",
        "tokens      16 raw, 10 compressed, pad 2 -> 2",
        "token map   engram_token_map.json, 16 entries"]
    assert "layer 14, 120 rows" in lines
    assert not [line for line in lines if line != line.rstrip()]
    assert "problem" not in result.stdout


@pytest.mark.parametrize("words,message", [
    (["--inspect"], "requires an argument"),
    (["--json"], "--json, --tp-size and --token-map go with --inspect DIR"),
    (["-c", "x", "--tp-size", "2"], "go with --inspect DIR"),
    (["--inspect", "x", "--check"], "--inspect needs no configuration"),
    (["--inspect", "x", "-c", "y"], "--inspect needs no configuration"),
    (["--table", "x"], "--table goes with -c FILE"),
    (["-c", "x", "--table", "y", "--check"], "does not go with --check"),
    (["--inspect", "x", "y"], "there are no arguments but options"),
    (["--inspect", "x", "--tp-size", "0"], "give a number from 1 to 4096"),
    (["--inspect", "x", "--tp-size", "2x"], "give a number from 1 to 4096")])
def test_usage(words, message):
    result = run(ENGRAMD, *words)
    assert result.returncode == 2
    assert message in result.stderr
    assert result.stdout == ""


# ---- a table of the configuration ----

def other_kind(tmp_path, **table):
    """A table that only the configuration describes."""
    table = {"name": "other", "load": "on_demand",
             "rows": {"dim": 160, "scale": "tensor", "multiple": 128},
             "tensors": {"weight": ["t.{layer}.{part}.weight"],
                         "scale": ["t.{layer}.scale"]},
             "hash": {"layers": [3], "max_ngram": 3, "heads": 2, "ids": "raw",
                      "vocab_size": 300, "pad_id": 7, "prime_start": 50,
                      "cut_tokens": [7, 9]},
             **table}
    model = kinds.Model(table)
    table["checkpoint"] = str(model.write(tmp_path / "other"))
    config = tmp_path / "engramd.json"
    config.write_text(json.dumps({"tables": [
        {"name": "first", "checkpoint": "/nonexistent"}, table]}))
    return config, model.tables[3]


def test_table(tmp_path):
    config, stored = other_kind(tmp_path)
    result = run(ENGRAMD, "-c", config, "--table", "other", "--json")
    assert (result.returncode, result.stderr) == (0, "")
    answer = json.loads(result.stdout)
    assert answer["checkpoint"] == str(tmp_path / "other")
    assert answer["loadable"] is True
    assert answer["token_map"] == {"source": "raw", "file": None,
                                   "entries": 300}
    assert answer["geometry"]["dim"] == 160
    assert answer["geometry"]["cut_ids"] == [7, 9]
    assert answer["geometry"]["scale"] == "tensor"
    layer, = answer["layers"]
    assert layer["layer_id"] == 3 and layer["rows"] == stored.rows
    # One of them has no rows.
    assert layer["weight"]["parts"] == kinds.PARTS - 1
    assert layer["scale"]["shape"] == []
    assert answer["disk"]["tensors_bytes"] == stored.rows * 160 + 4
    assert answer["memory"]["records_bytes"] == stored.rows * 160
    text = run(CTL, "inspect", "--config", config, "--table", "other").stdout
    assert f"the first of {kinds.PARTS - 1} parts\n" in text
    assert "tokens      300 raw, pad 7; texts end at 7, 9\n" in text
    assert "token map   none: raw ids are hashed\n" in text
    assert "not hashed" not in text


def test_table_of_another_directory(tmp_path):
    """--inspect is where to look in place of the table's checkpoint."""
    config, _ = other_kind(tmp_path)
    (tmp_path / "other").rename(tmp_path / "moved")
    for words in ([ENGRAMD, "-c", config, "--table", "other", "--inspect",
                   tmp_path / "moved"],
                  [CTL, "inspect", tmp_path / "moved", "--config", config,
                   "--table", "other"]):
        result = run(*words)
        assert result.returncode == 0, result.stderr
        assert str(tmp_path / "moved") in result.stdout


def test_table_faults(tmp_path):
    config, _ = other_kind(tmp_path)
    shutil.rmtree(tmp_path / "other")
    result = run(ENGRAMD, "-c", config, "--table", "other", "--json")
    assert result.returncode == 1
    assert json.loads(result.stdout)["problems"][0]["name"] == "NotFound"
    result = run(ENGRAMD, "-c", config, "--table", "none")
    assert result.returncode == 1 and result.stdout == ""
    assert f'{config}: there is no table "none"' in result.stderr
    for words in (["inspect"], ["inspect", "--table", "other"],
                  ["inspect", "--config", config]):
        result = run(CTL, *words)
        assert result.returncode == 2
        assert "--config FILE and --table NAME" in result.stderr


@pytest.mark.parametrize("layout", ["packed", "split"])
def test_both_layouts(layout, tmp_path):
    """What a load takes of memory, in the one that is configured, and what
    the other would."""
    import engramd  # pylint: disable=import-outside-toplevel
    model = engramd.synth(tmp_path / "model", "--engram-vocab-size", "30000",
                          "--layers", "3,9")
    other = {"packed": "split", "split": "packed"}[layout]
    tables = [{"name": name, "checkpoint": str(model), "layout": name,
               "load": "on_demand"} for name in (layout, other)]
    config = tmp_path / "engramd.json"
    config.write_text(json.dumps({"tables": tables}))
    result = run(ENGRAMD, "-c", config, "--table", layout, "--json")
    answer = json.loads(result.stdout)
    both = answer["memory"], answer["memory_other_layout"]
    assert [m["layout"] for m in both] == [layout, other]
    server = engramd.Sidecar(tmp_path, tables)
    try:
        client = server.client()
        for memory in both:
            client.load(memory["layout"])
            table = client.table(memory["layout"])
            total = memory["backings"][0]["bytes"]
            assert table["bytes"] == total == memory["total_bytes"]
            used = sum(512 * (engramd.SHM / layer["segment"]).stat().st_blocks
                       for layer in table["layers"])
            # Pinning touches every page; else the last ones may be missing.
            assert used == total if table["locked"] else \
                total - 8 * MIB < used <= total
        client.close()
    finally:
        server.stop()
    text = run(ENGRAMD, "-c", config, "--table", layout).stdout
    assert text.index(f"them, {layout}\n") < text.index(f"them, {other}\n")


# ---- engramctl ----

def test_engramctl_says_the_same(tmp_path):
    c = builder.Checkpoint()
    c.write(tmp_path / "good")
    c.remove(c.scale(1))
    c.write(tmp_path / "bad")
    for name in ("good", "bad"):
        for ours, theirs in ([], []), (["--tp-size", "2"],) * 2, (
                ["--json", "--token-map", "engram_token_map.json"],) * 2:
            got = run(CTL, "inspect", tmp_path / name, *ours)
            want = run(ENGRAMD, "--inspect", tmp_path / name, *theirs)
            assert got.returncode == want.returncode == (name == "bad")
            if "--json" in ours:
                got, want = (json.loads(r.stdout) for r in (got, want))
                for answer in (got, want):
                    del answer["room"]  # changes from one to the next
                assert got == want
            else:
                assert got.stdout == want.stdout


def test_engramctl_finds_engramd(tmp_path):
    """As installed: bin/ and sbin/, then PATH; else it says what to do."""
    builder.Checkpoint().write(tmp_path / "checkpoint")
    (tmp_path / "bin").mkdir()
    (tmp_path / "sbin").mkdir()
    ctl = shutil.copy2(CTL, tmp_path / "bin")
    bare = {**os.environ, "PATH": "/nonexistent"}
    result = run(ctl, "inspect", "checkpoint", cwd=tmp_path, env=bare)
    assert result.returncode == 3
    assert result.stderr == (
        "engramctl: run engramd: No such file or directory\n"
        "  fix: install engramd beside engramctl or in PATH: it reads the "
        "checkpoint\n")
    result = run(ctl, "--json", "inspect", "x", env=bare)
    assert json.loads(result.stdout)["error"]["name"] == "Disconnected"
    in_path = {**os.environ, "PATH": str(pathlib.Path(ENGRAMD).parent)}
    assert run(ctl, "inspect", "checkpoint", cwd=tmp_path,
               env=in_path).returncode == 0
    shutil.copy2(ENGRAMD, tmp_path / "sbin")
    assert run(ctl, "inspect", "checkpoint", cwd=tmp_path,
               env=bare).returncode == 0


@pytest.mark.parametrize("words,message", [
    (["inspect"], "inspect: nothing to inspect"),
    (["inspect", "a", "b"], 'inspect: "b" is too much'),
    (["inspect", "a", "--tp-size", "0"], '--tp-size: "0" is out of range')])
def test_engramctl_usage(words, message):
    result = run(CTL, *words)
    assert result.returncode == 2
    assert result.stderr.startswith(f"engramctl: {message}\n")
