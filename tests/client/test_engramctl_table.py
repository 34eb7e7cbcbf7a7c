# SPDX-License-Identifier: Apache-2.0
"""engramctl's views of a table: hash, rows, lookup, bench; and prune."""
import json
import math
import os
import pathlib
import struct
import subprocess

import pytest

from ctl import BUILD, run

DIM, BLOCK, COLS, HEADS, MAX_NGRAM, PAD_ID = 64, 32, 9, 3, 4, 11
LAYERS = [3, 7]


def record(layer_id, row):
    """As fake_byte in fake.c."""
    codes = bytes((layer_id * 31 + row * 7 + i * 3) % 256 for i in range(DIM))
    scales = bytes(118 + (row + i) % 20 for i in range(DIM, DIM + 2))
    return codes, scales


def fp8(code):
    exponent, mantissa = code >> 3 & 15, code & 7
    if exponent == 15 and mantissa == 7:
        return math.nan
    value = (mantissa / 8 * 2.0 ** -6 if exponent == 0
             else (1 + mantissa / 8) * 2.0 ** (exponent - 7))
    return -value if code & 128 else value


def bf16_row(layer_id, row):
    codes, scales = record(layer_id, row)
    return [fp8(code) * 2.0 ** (scales[i // BLOCK] - 127)
            for i, code in enumerate(codes)]


def bits_of(value):
    return struct.unpack(">I", struct.pack(">f", value))[0] >> 16


@pytest.fixture(scope="module")
def daemon():
    with subprocess.Popen([BUILD / "tests" / "fake_daemon"],
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          text=True) as proc:
        yield json.loads(proc.stdout.readline())
        proc.stdin.close()
        assert proc.wait(30) == 0


def ctl(daemon, *args):
    return run("--socket", daemon["socket"], *args)


def expected_ids(daemon, layer, tokens, position):
    ids = []
    for col in range(COLS):
        rolling = 0
        for k in range(col // HEADS + 2):
            source = (daemon["token_map"][tokens[position - k]]
                      if position >= k else PAD_ID)
            rolling ^= source * daemon["multipliers"][layer * MAX_NGRAM + k]
        at = layer * COLS + col
        ids.append(rolling % daemon["primes"][at] + daemon["offsets"][at])
    return ids


def test_hash(daemon):
    tokens = [4, 8, 15, 16, 23, 42]
    result = ctl(daemon, "--json", "hash", "demo", "--tokens",
                 ",".join(map(str, tokens)))
    answer = json.loads(result.stdout)
    assert answer["table"] == "demo"
    assert answer["generation"] == 5
    assert answer["tokens"] == tokens
    assert {layer["layer_id"] for layer in answer["layers"]} == set(LAYERS)
    for layer in answer["layers"]:
        index = LAYERS.index(layer["layer_id"])
        assert layer["ids"] == [expected_ids(daemon, index, tokens, p)
                                for p in range(len(tokens))]
    text = ctl(daemon, "hash", "demo", "--tokens", "4,8", "--layer", "7").stdout
    first, second = (" ".join(map(str, expected_ids(daemon, 1, [4, 8], p)))
                     for p in (0, 1))
    assert text == f"layer 7\n  token 4: {first}\n  token 8: {second}\n"


def test_hash_refuses_an_unknown_token(daemon):
    result = ctl(daemon, "hash", "demo", "--tokens", "4,50")
    assert result.returncode == 1
    assert "50" in result.stderr and result.stdout == ""


def test_rows(daemon):
    codes, scales = record(7, 10)
    result = ctl(daemon, "rows", "demo", "--layer", "7", "--ids", "10")
    assert result.stdout == (f"row 10\n  codes  {codes.hex()}\n"
                             f"  scales {scales.hex()}\n")
    answer = json.loads(ctl(daemon, "rows", "demo", "--layer=3", "--ids=0,9",
                            "--json").stdout)
    assert answer["layer_id"] == 3
    assert answer["rows"] == [
        {"row": row, "codes": record(3, row)[0].hex(),
         "scales": record(3, row)[1].hex()} for row in (0, 9)]


def test_rows_refuses_what_is_not_there(daemon):
    rows = sum(daemon["primes"][:COLS])
    result = ctl(daemon, "rows", "demo", "--layer", "3", "--ids", str(rows))
    assert result.stderr == (f'engramctl: table "demo", layer 3: row {rows} '
                             f"is not in [0, {rows})\n")
    assert result.returncode == 1


def test_lookup(daemon):
    answer = json.loads(ctl(daemon, "lookup", "demo", "--layer", "3", "--ids",
                            "7,-1", "--json").stdout)
    expected = bf16_row(3, 7)
    row, miss = answer["rows"]
    assert row["found"] and not miss["found"] and answer["misses"] == 1
    assert miss["bits"] == ["0000"] * DIM
    for bits, value, want in zip(row["bits"], row["values"], expected):
        if math.isnan(want):
            assert value is None and int(bits, 16) & 0x7fff > 0x7f80
        else:
            assert value == want and int(bits, 16) == bits_of(want)
    lines = ctl(daemon, "lookup", "demo", "--layer", "3", "--ids=-1,7"
                ).stdout.splitlines()
    assert lines[0] == "row -1 (no such row: zeros)"
    assert lines[4].split()[:2] == ["bits", row["bits"][0]]


def test_no_such_table(daemon):
    result = ctl(daemon, "rows", "x", "--layer", "3", "--ids", "1")
    assert result.stderr == ('engramctl: no table "x"\n'
                             "  fix: do better\n")
    assert result.returncode == 1


@pytest.mark.parametrize("threads", [1, 3])
def test_bench(daemon, threads):
    result = ctl(daemon, "bench", "demo", "--rows", "500", "--repeat", "4",
                 "--threads", str(threads), "--json")
    assert result.returncode == 0, result.stderr
    answer = json.loads(result.stdout)
    assert answer["threads"] == threads
    assert answer["record_bytes"] == DIM + DIM // BLOCK
    assert answer["isa"] in ("scalar", "avx2", "avx512")
    assert set(answer["machine"]) == {"cpu", "cpus", "kernel", "arch"}
    assert [case["distribution"] for case in answer["cases"]] == [
        "uniform", "zipf"]
    for case in answer["cases"]:
        assert case["rows"] == 504  # whole tokens of nine heads
        assert case["repetitions"] == 4
        assert case["identical"]
        for loop in ("lookup", "plain"):
            assert 0 < case[loop]["seconds_min"] <= \
                case[loop]["seconds_median"]
        assert case["ratio_median"] > 0


def test_bench_by_time_ends_by_itself(daemon):
    result = ctl(daemon, "bench", "demo", "--rows", "9", "--seconds", "0.02",
                 "--distribution", "zipf")
    lines = result.stdout.splitlines()
    assert lines[1].startswith("zipf, 9 rows, ")
    assert lines[2].startswith("  engram_lookup ")
    assert lines[3].startswith("  memcpy and convert ")
    assert lines[4].startswith("  ratio ")


# ---- prune ----

@pytest.fixture
def orphans():
    """Names of an instance that does not run."""
    instance = f"t-client-{os.getpid()}"
    paths = [pathlib.Path("/dev/shm") / f"engramd.{instance}.{rest}"
             for rest in ("demo.1.g1", "demo.14.g1")]
    for path in paths:
        path.write_bytes(bytes(8192))
    yield instance, paths
    for path in pathlib.Path("/dev/shm").glob(f"engramd.{instance}.*"):
        path.unlink()


def test_prune(orphans):
    instance, paths = orphans
    result = run("prune", "--instance", instance)
    assert result.stdout == (f"orphan  {paths[0].name}  8.0 KiB\n"
                             f"orphan  {paths[1].name}  8.0 KiB\n"
                             "2 files, 16.0 KiB; remove with --yes\n")
    assert all(path.exists() for path in paths)
    answer = json.loads(run("prune", "--instance", instance, "--json").stdout)
    assert answer["bytes"] == 16384 and not answer["removed"]
    assert [entry["name"] for entry in answer["entries"]] == [
        path.name for path in paths]
    result = run("prune", "--instance", instance, "--yes")
    assert result.stdout.endswith("2 files, 16.0 KiB freed\n")
    assert not list(pathlib.Path("/dev/shm").glob(f"engramd.{instance}.*"))
    result = run("prune", "--instance", instance)
    assert result.stdout == "nothing to remove\n"


@pytest.mark.parametrize("yes", [False, True])
def test_prune_goes_on(orphans, tmp_path, yes):
    """One that can not be looked at keeps nobody from the rest."""
    instance, paths = orphans
    directory = tmp_path / "memory"
    directory.mkdir()
    for path in paths:
        (directory / path.name).write_bytes(bytes(8192))
    (directory / "engramd.a.demo.1.g1").write_bytes(bytes(8192))
    (directory / "engramd.a.ctl").symlink_to("/dev/null")
    (directory / "engramd.no-name").write_bytes(bytes(8192))
    args = ["prune", "--path", str(directory)] + ["--yes"] * yes
    wanted = [path.name for path in paths]
    result = run(*args, "--json")
    assert result.returncode == 1
    answer = json.loads(result.stdout)
    assert [entry["name"] for entry in answer["entries"]] == wanted
    error, = answer["errors"]
    assert error["instance"] == "a" and error["fix"]
    assert f"{directory}/engramd.a.ctl: Too many levels" in error["message"]
    assert result.stderr.splitlines()[0] == f"engramctl: {error['message']}"
    left = {"engramd.a.demo.1.g1", "engramd.a.ctl", "engramd.no-name"}
    assert {path.name for path in directory.iterdir()} == (
        left if yes else left | set(wanted))


def test_prune_refuses_a_path():
    result = run("prune", "--instance", "../x")
    assert result.stderr == ('engramctl: --instance: "../x" is no instance '
                             "name\n  fix: give the name of an instance\n")
    assert result.returncode == 2
