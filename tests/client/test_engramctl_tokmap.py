# SPDX-License-Identifier: Apache-2.0
"""engramctl tokmap: shown, compared, exported; files good and bad."""
import ast
import collections
import json
import os
import stat
import struct
import subprocess
import sys

import pytest

from ctl import BUILD, ROOT, run

sys.path.insert(0, str(ROOT / "tests" / "integration"))
import engramd  # noqa: E402 pylint: disable=wrong-import-position


@pytest.fixture(scope="module")
def daemon():
    with subprocess.Popen([BUILD / "tests" / "fake_daemon"],
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          text=True) as proc:
        yield json.loads(proc.stdout.readline())
        proc.stdin.close()
        assert proc.wait(30) == 0


@pytest.fixture
def ctl(daemon):
    def call(*args, code=0):
        result = run("--socket", daemon["socket"], "tokmap", "demo",
                     *map(str, args))
        assert result.returncode == code, result.stderr
        return result

    return call


def npy(values, descr="<i4", shape=None, version=1):
    """A .npy file by hand."""
    shape = (len(values),) if shape is None else shape
    header = repr({"descr": descr, "fortran_order": False,
                   "shape": shape}).encode() + b"\n"
    length = struct.pack("<H" if version == 1 else "<I", len(header))
    kind = {"4": "i", "8": "q"}.get(descr[-1], "i")
    return (b"\x93NUMPY" + bytes([version, 0]) + length + header
            + struct.pack(f"<{len(values)}{kind}", *values))


def test_summary(daemon, ctl):
    raw = collections.defaultdict(list)
    for token, compressed in enumerate(daemon["token_map"]):
        raw[compressed].append(token)
    merged = sorted((c for c in raw if len(raw[c]) > 1),
                    key=lambda c: (-len(raw[c]), c))[:5]
    assert merged
    answer = json.loads(ctl("--json").stdout)
    assert answer["table"] == "demo" and answer["generation"] == 5
    assert answer["raw_ids"] == 50 and answer["identity"] is False
    assert answer["compressed_ids"] == len(raw)
    assert answer["pad_id"] == 11
    assert answer["merged"] == [
        {"compressed": c, "count": len(raw[c]), "first_raw": raw[c][:8]}
        for c in merged]
    text = ctl().stdout
    assert text.startswith("table           demo, generation 5\n"
                           "raw ids         50\n"
                           f"compressed ids  {len(raw)}\n"
                           "pad id          11 (compressed)\n"
                           "most merged\n"
                           f"  {merged[0]}: {len(raw[merged[0]])} raw ids: ")
    assert len(text.splitlines()) == 5 + len(merged)


def test_ids(daemon, ctl):
    token_map = daemon["token_map"]
    assert ctl("--id", "4,49,0").stdout == "".join(
        f"{token} -> {token_map[token]}\n" for token in (4, 49, 0))
    assert json.loads(ctl("--id=7", "--json").stdout)["ids"] == [
        {"raw": 7, "compressed": token_map[7]}]
    result = ctl("--id", "4,50", code=1)
    assert result.stdout == ""
    assert result.stderr == (
        'engramctl: table "demo": token 50 is not in [0, 50)\n'
        "  fix: give raw token ids of the model\n")


@pytest.mark.parametrize("content", [
    lambda m: json.dumps(m).encode(),
    lambda m: json.dumps({"token_map": m, "made": "by hand"}).encode(),
    lambda m: npy(m), lambda m: npy(m, "<i8"), lambda m: npy(m, version=2)],
    ids=["array", "object", "int32", "int64", "npy 2"])
def test_diff(content, daemon, ctl, tmp_path):
    token_map = daemon["token_map"]
    file = tmp_path / "map"
    file.write_bytes(content(token_map))
    assert ctl("--diff", file).stdout == "the same 50 entries\n"
    assert json.loads(ctl("--diff", file, "--json").stdout)["equal"] is True
    other = list(token_map)
    other[3] += 1
    other[40] = -1
    file.write_bytes(content(other))
    assert ctl("--diff", file, code=1).stdout == (
        f"3: table {token_map[3]}, file {token_map[3] + 1}\n"
        f"40: table {token_map[40]}, file -1\n2 entries differ\n")
    answer = json.loads(ctl("--diff", file, "--json", code=1).stdout)
    assert answer["equal"] is False and answer["differ"] == 2
    assert answer["first"][1] == {"raw": 40, "table": token_map[40],
                                  "file": -1}


def test_diff_shows_the_first(daemon, ctl, tmp_path):
    file = tmp_path / "map.json"
    file.write_text(json.dumps([i + 1 for i in daemon["token_map"]]))
    lines = ctl("--diff", file, code=1).stdout.splitlines()
    assert lines[0].startswith("0: ") and lines[9].startswith("9: ")
    assert lines[10:] == ["...", "50 entries differ"]


def test_diff_of_another_length(daemon, ctl, tmp_path):
    file = tmp_path / "map.json"
    for values in (daemon["token_map"][:-1], daemon["token_map"] + [1], []):
        file.write_text(json.dumps(values))
        assert ctl("--diff", file, code=1).stdout == (
            f"the table has 50 entries, {file} has {len(values)}\n")


@pytest.mark.parametrize("content,what", [
    (b"", "line "), (b"[1, 2", "line 1: "), (b'{"map": [1]}', "no array, and"),
    (b"[1, 2.5]", "entry 1 is not an integer"), (b"3", "line 1: "),
    (b'{"token_map": [], "token_map": []}', "line 1: duplicate"),
    (b"[99999999999999999999]", "line 1: "),
    (npy([1, 2], ">i4"), "its elements are not int32 or int64"),
    (npy([1, 2], "<u4"), "its elements are not int32 or int64"),
    (npy([1, 2], "<f4"), "its elements are not int32 or int64"),
    (npy([1, 2], shape=(1, 2)), "its elements are not int32 or int64"),
    (npy([1, 2], shape=()), "its elements are not int32 or int64"),
    (npy([1, 2], shape=(3,)), "its length is not what its header says"),
    (npy([1, 2]) + b"\0", "its length is not what its header says"),
    (npy([1, 2], shape=(2**62 + 2,)), "its length is not what its header"),
    (npy([1, 2], version=4), "its .npy header is damaged"),
    (npy([1, 2])[:9], "its .npy header is damaged"),
    (npy([1, 2])[:30], "its .npy header is damaged"),
    (b"\x93NUMPY", "its .npy header is damaged")],
    ids=lambda value: value[:9] if isinstance(value, str) else None)
def test_diff_refuses(content, what, ctl, tmp_path):
    file = tmp_path / "map"
    file.write_bytes(content)
    result = ctl("--diff", file, code=1)
    assert result.stderr.startswith(f"engramctl: {file}: {what}")
    assert "\n  fix: give a JSON array of numbers" in result.stderr
    assert result.stdout == ""


def test_diff_needs_a_file(ctl, tmp_path):
    result = ctl("--diff", tmp_path / "none", code=1)
    assert "none: No such file or directory" in result.stderr
    assert "not a regular file" in ctl("--diff", tmp_path, code=1).stderr


def test_export(daemon, ctl, tmp_path):
    umask = os.umask(0o022)
    try:
        for name in ("map.json", "map.npy"):
            file = tmp_path / name
            file.write_text("what was there")
            assert ctl("--export", file).stdout == f"{file}: 50 entries\n"
            assert stat.S_IMODE(file.stat().st_mode) == 0o644
            assert "the same" in ctl("--diff", file).stdout
    finally:
        os.umask(umask)
    assert sorted(os.listdir(tmp_path)) == ["map.json", "map.npy"]
    assert json.loads((tmp_path / "map.json").read_text()) == {
        "token_map": daemon["token_map"]}
    data = (tmp_path / "map.npy").read_bytes()
    assert data[:10] == b"\x93NUMPY\x01\x00\x76\x00"
    assert data[127:128] == b"\n"
    assert ast.literal_eval(data[10:128].decode()) == {
        "descr": "<i4", "fortran_order": False, "shape": (50,)}
    assert list(struct.unpack("<50i", data[128:])) == daemon["token_map"]
    answer = json.loads(ctl("--export", file, "--json").stdout)
    assert answer["file"] == str(file) and answer["raw_ids"] == 50


def test_export_is_a_numpy_array(daemon, ctl, tmp_path):
    numpy = pytest.importorskip("numpy", reason="NumPy is not installed")
    ctl("--export", tmp_path / "map.npy")
    array = numpy.load(tmp_path / "map.npy")
    assert array.dtype == numpy.int32
    assert array.tolist() == daemon["token_map"]
    numpy.save(tmp_path / "saved.npy", array.astype(numpy.int64))
    assert "the same" in ctl("--diff", tmp_path / "saved.npy").stdout


def test_export_leaves_nothing_behind(ctl, tmp_path):
    (tmp_path / "map.npy").mkdir()
    result = ctl("--export", tmp_path / "map.npy", code=1)
    assert "Is a directory\n  fix: name a file" in result.stderr
    assert os.listdir(tmp_path) == ["map.npy"]
    result = ctl("--export", tmp_path / "none" / "map.npy", code=1)
    assert "No such file or directory\n  fix: name a file" in result.stderr


def test_against_engramd(tmp_path):
    """What is exported is what the checkpoint has, and loads again."""
    model = engramd.synth(tmp_path / "model", "--vocab-size", "500",
                          "--compressed-vocab-size", "400",
                          "--engram-vocab-size", "300", "--layers", "3",
                          "--pad-id", "7")
    server = engramd.Sidecar(tmp_path, [
        {"name": "demo", "checkpoint": str(model), "load": "on_demand"}])
    try:
        def call(*args, code=0):
            result = run("--socket", str(server.socket), *map(str, args))
            assert result.returncode == code, result.stderr
            return result

        call("load", "demo")
        given = model / "engram_token_map.json"
        token_map = json.loads(given.read_text())["token_map"]
        assert call("tokmap", "demo", "--diff", given).stdout == (
            "the same 500 entries\n")
        answer = json.loads(call("tokmap", "demo", "--json").stdout)
        assert answer["raw_ids"] == 500
        assert answer["compressed_ids"] == 400
        assert answer["pad_id"] == token_map[7]
        call("unload", "demo")
        given.unlink()
        call("load", "demo")
        result = call("tokmap", "demo", code=1)
        assert "token map" in result.stderr
        call("unload", "demo")
        given.write_text(json.dumps(token_map))
        call("load", "demo")
        call("tokmap", "demo", "--export", tmp_path / "map.json")
        call("unload", "demo")
        (tmp_path / "map.json").rename(given)
        call("load", "demo")
        assert "the same" in call("tokmap", "demo", "--diff", given).stdout
    finally:
        server.stop()
