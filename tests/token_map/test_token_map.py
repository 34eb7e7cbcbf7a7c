# SPDX-License-Identifier: Apache-2.0
"""The token map that the sidecar makes of tokenizer.json: by rule, and id by
id against the `tokenizers` library."""
import json
import os
import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE))
from tokenizer_file import BYTE_LEVEL, added, spell, write  # noqa: E402

BUILD = pathlib.Path(os.environ.get("ENGRAM_BUILD", "build")).resolve()
PROBE = BUILD / "tests/token_map_probe"
VENV = HERE.parent.parent / "build/tokenizers"


def probe(*words):
    return subprocess.run([PROBE, *words],
                          capture_output=True, check=True, timeout=120).stdout


def ours(file):
    return json.loads(probe(file))


def library(*words):
    """What the library says; skips where there is none."""
    if not (VENV / "ready").exists():
        why = VENV / "why-not"
        pytest.skip("no tokenizers library: " + (
            why.read_text().strip() if why.exists() else "make check gets it"))
    run = subprocess.run([VENV / "venv/bin/python", HERE / "reference.py",
                          *words], capture_output=True, check=True,
                         timeout=300)
    return run.stdout


def theirs(file):
    return json.loads(library(file))


# Rule -> groups of texts: those of one group are one to the hash, those of
# different groups are not.
RULES = {
    "case and the space before": [
        ["the", " the", "The", " THE", "the ", "\tthe\n"], ["then"]],
    "accents": [["e", "é", "É", "ê", "e\u0301", "E\u0301\u0323"], ["o", "ő"],
                ["ø", "Ø"], ["ł"]],
    "combining marks": [["\u0301"], ["\u0302"], ["\u093f"],
                        ["a", "a\u20dd", "a\u0488"],
                        ["क", "कि", "क्", "क़", "\u0958"]],
    "marks newer than the library's": [
        ["a"], ["a\u08ca"], ["a\U00011938"], ["c", "c\u1cf2"], ["令和"],
        ["㋿"]],
    "Turkish I": [["i", "İ", "I", "i\u0307"], ["ı"]],
    "sharp s": [["ß", "ẞ"], ["ss", "SS"]],
    "sigma": [["σας", "Σας"], ["σασ", "ΣΑΣ"]],
    "ligatures": [["fi", "ﬁ", "Fi"], ["ffi", "ﬃ"], ["st", "ﬅ", "ſt"],
                  ["æ", "Æ", "ǽ"]],
    "full width": [["a", "Ａ", "ａ"], ["1", "１", "①", "¹"], ["!", "！"],
                   ["ア", "ｱ"], ["カ", "ガ", "ｶﾞ"]],
    "Hangul": [["한", "\u1112\u1161\u11ab", " 한"], ["하", "\u1112\u1161"],
               ["\u1112", "ㅎ"]],
    "runs of spaces": [["a b", "a  b", "a\n\n\tb", " a \r\n b", "a\u3000b",
                        "a\u00a0b", "a \u2003b"],
                       ["a\vb"], ["a\u2028b"], ["a\u1680b"], ["a\x85b"],
                       ["ab"], ["a\u200bb"]],
    "spaces alone": [[" ", "  ", "\n", "\t\t", "\r\n", "\u00a0", "\u3000",
                      "\u2003 ", "¨", "\ue000", " \ue000"],
                     ["\v"], ["\f"], ["\x85"], ["\u2028"], ["\u2029"],
                     ["\u1680"], ["\v\v"], [" \v"], ["\v "], ["\u200b"]],
    "spaces at the ends": [["a", "\va", "a\u2028", "\x85a\u1680 "],
                           ["a\ue000"]],
    "the private-use character": [["a b", "a\ue000b"], ["a  b\ue000"],
                                  ["a\ue001b"]],
    "control characters": [["\0"], ["\x01"], ["\x7f"], ["a"], ["a\0"],
                           ["\x1c"], ["\x9f"], ["\u200d"], ["\ufeff"]],
    "partial UTF-8": [[b"\xe4"], [b"\xe4\xbd"], ["你"], [b" \xe4"],
                      [b"\xc3"], [b"\xff"], [b"A\xff"], [b"a\xff"],
                      [b"\xed\xa0\x80"], [b"\xf4\x90\x80\x80"],
                      [b"\xc0\x80"], ["\ufffd"], [" \ufffd"], ["A\ufffd"]],
    "beyond the basic plane": [["𝐀", "a"], ["😀"], ["𐐀", "𐐨"], ["𝅘𝅥", "𝅘"]],
    "a token that looks like another's spelling": [["Ġa", "ġa", "ga"], [" a"]],
}


@pytest.fixture(name="rule", params=RULES)
def rule_file(request, tmp_path):
    groups = RULES[request.param]
    texts = [text for group in groups for text in group]
    return groups, write(tmp_path / "tokenizer.json", texts)


def test_rule(rule):
    groups, file = rule
    assert ours(file)["token_map"] == [
        i for i, group in enumerate(groups) for _ in group]


def test_rule_library(rule):
    _, file = rule
    assert ours(file) == theirs(file)


# A vocabulary, added tokens and a decoder each.
WHOLE = {
    "no tokens": ({},),
    "the empty token": ({"": 0, "a": 1},),
    "added tokens": (["a", "b"], [
        added(2, "<｜end▁of▁sentence｜>", special=True), added(3, "A b"),
        added(4, "<pad>", normalized=True), added(5, " a "), added(6, "é"),
        added(7, "Ġb"), added(8, "ÉA"), added(9, "\ufffd"),
        added(10, "e\u0301", normalized=True), added(11, "\n"),
        added(12, "E\u0301", special=True, normalized=True)]),
    "added tokens of the vocabulary": (["a", "b", "c"], [
        added(1, "b", special=True), added(3, "d"), added(0, "a")]),
    "added tokens with other ids than stated": (["a", "b"], [
        added(9, "c"), added(5, ""), added(7, "d"), added(7, "e"),
        added(2, "c")]),
    "added tokens only": ({}, [added(4, "x"), added(5, "y")]),
    "holes": ({"a": 0, "b": 3, "Ġ": 4, "c": 5, "A": 2},),
    "holes that lead past the end": (
        {"a": 0, "b": 7, "B": 3, "c": 4000000000},),
    "holes and added tokens": ({"a": 0, "b": 1, "c": 2, "d": 4}, [
        added(9, "q"), added(10, "zz"), added(1, "b"), added(3, "a")]),
    "an added token of the vocabulary past a hole": (
        {"a": 0, "b": 7}, [added(7, "b"), added(8, "c"), added(9, "d")]),
    "an added token in the place of another": (
        {"a": 0, "b": 2}, [added(2, "x"), added(3, "b"), added(4, "y")]),
    "decoders in sequence": (["a", "é", b"\xe4"], [added(3, "x y")], {
        "type": "Sequence", "decoders": [BYTE_LEVEL, {"type": "Fuse"}]}),
}


@pytest.mark.parametrize("name", WHOLE)
def test_whole_library(name, tmp_path):
    file = write(tmp_path / "tokenizer.json", *WHOLE[name])
    assert ours(file) == theirs(file)


# Files beside tokenizer.json, and which of them names what that lacks.
TOKENS = (["a", "b"], [added(2, "<pad>", special=True)])
KNOWN = {"added_tokens_decoder": {"2": added(2, "<pad>"), "0": added(0, "a")},
         "bos_token": "b", "eos_token": added(2, "<pad>"), "unk_token": None,
         "pad_token": "", "add_bos_token": True,
         "model_max_length": 10 ** 30, "chat_template": "{{ x }}",
         "additional_special_tokens": ["a", added(2, "<pad>")],
         "extra_special_tokens": {"image_token": "<pad>"}}
CONFIG, MAP = "tokenizer_config.json", "special_tokens_map.json"
BESIDE = {
    "nothing new": ({CONFIG: KNOWN, MAP: {"bos_token": "a"},
                     "added_tokens.json": {"<pad>": 2}}, None),
    "an added token": (
        {CONFIG: {"added_tokens_decoder": {"3": added(3, "<x>")}}},
        f'{CONFIG}: added_tokens_decoder "<x>"'),
    "a named one": ({CONFIG: {**KNOWN, "sep_token": "<x>"}},
                    f'{CONFIG}: sep_token "<x>"'),
    "a named one as an object": ({CONFIG: {"eos_token": added(3, "<x>")}},
                                 f'{CONFIG}: eos_token "<x>"'),
    "one of the model's own names": ({CONFIG: {"image_token": "<x>"}},
                                     f'{CONFIG}: image_token "<x>"'),
    "one of a list": ({CONFIG: {"additional_special_tokens": ["a", "<x>"]}},
                      f'{CONFIG}: additional_special_tokens "<x>"'),
    "one of a set of names": (
        {CONFIG: {"extra_special_tokens": {"image_token": "<x>"}}},
        f'{CONFIG}: extra_special_tokens "<x>"'),
    "the older map of names": ({MAP: {"bos_token": "<x>"}},
                               f'{MAP}: bos_token "<x>"'),
    "the older list": ({CONFIG: {"bos_token": "a"},
                        "added_tokens.json": {"<pad>": 2, "<x>": 3}},
                       'added_tokens.json: token "<x>"'),
    "older files that are not asked": (
        {CONFIG: KNOWN, MAP: {"bos_token": "<x>"},
         "added_tokens.json": {"<x>": 3}}, None),
}


@pytest.mark.parametrize("name", BESIDE)
def test_files_beside(name, tmp_path):
    files, fault = BESIDE[name]
    file = write(tmp_path / "tokenizer.json", *TOKENS)
    for other, content in files.items():
        (tmp_path / other).write_text(json.dumps(content))
    if not fault:
        assert ours(file)["token_map"] == [0, 1, 2]
        return
    run = subprocess.run([PROBE, file], capture_output=True, text=True,
                         check=False, timeout=120)
    assert run.returncode == 1
    assert f"{tmp_path}/{fault} is not in tokenizer.json\n" in run.stdout
    assert f"path: {tmp_path}/{fault.split(':')[0]}\n" in run.stdout
    assert "save_pretrained(DIR)" in run.stdout


def test_damaged_file_beside(tmp_path):
    file = write(tmp_path / "tokenizer.json", *TOKENS)
    (tmp_path / CONFIG).write_text("{")
    run = subprocess.run([PROBE, file], capture_output=True, text=True,
                         check=False, timeout=120)
    assert run.returncode == 1
    assert f"{tmp_path}/{CONFIG}:1:1: " in run.stdout


def test_holes(tmp_path):
    """An id that no token has is keyed by the empty text; the map has as many
    entries as there are tokens."""
    file = write(tmp_path / "tokenizer.json",
                 {"a": 0, "b": 3, "A": 4, "": 5, "c": 9})
    assert ours(file)["token_map"] == [0, 1, 1, 2, 0]


def test_link_to_nothing_beside(tmp_path):
    """What it named is not known, which is not to name none."""
    file = write(tmp_path / "tokenizer.json", *TOKENS)
    for name in CONFIG, MAP, "added_tokens.json":
        (tmp_path / name).symlink_to("gone")
        run = subprocess.run([PROBE, file], capture_output=True, text=True,
                             check=False, timeout=120)
        assert run.returncode == 1
        assert f"{tmp_path}/{name}: is a link to what is not" in run.stdout
        assert f"path: {tmp_path}/{name}\n" in run.stdout
        (tmp_path / name).unlink()


def test_every_byte(tmp_path):
    file = write(tmp_path / "tokenizer.json",
                 [bytes([b]) for b in range(256)]
                 + [bytes([a, b]) for a in range(0xc0, 256)
                    for b in range(256)])
    assert ours(file) == theirs(file)


def test_every_code_point():
    assert probe("--fold") == library("--fold")


def test_every_space(tmp_path):
    """Alone, beside itself, and at both ends of a text; those of Unicode are
    all below U+3100."""
    points = [*range(0x3100), 0xe000, 0xe001, 0xfeff, 0xe0020]
    vocab = dict.fromkeys(spell(text) for c in map(chr, points)
                          for text in (c, c + c, "q" + c, c + "q"))
    file = write(tmp_path / "tokenizer.json",
                 {token: i for i, token in enumerate(vocab)})
    assert len(vocab) > 40000
    assert ours(file) == theirs(file)


def test_random_texts(tmp_path):
    """Also that the keys of what is equal are those that the library makes:
    each text beside its key."""
    pairs = json.loads(library("--random"))
    vocab = dict.fromkeys(spell(text) for pair in pairs for text in pair)
    file = write(tmp_path / "tokenizer.json",
                 {token: i for i, token in enumerate(vocab)})
    assert len(pairs) > 10000
    assert ours(file) == theirs(file)


def test_deepseek():
    """The released model's 129,280 tokens, id by id."""
    file = library("--deepseek").decode().strip()
    mine = ours(file)
    assert mine["compressed"] == 99092
    assert len(mine["token_map"]) == 129280
    assert mine == theirs(file)
