# SPDX-License-Identifier: Apache-2.0
"""Small tokenizer.json files, and bytes as byte-level vocabularies spell
them."""
import json

_PRINTABLE = [*range(0x21, 0x7f), *range(0xa1, 0xad), *range(0xae, 0x100)]
_OTHERS = [b for b in range(256) if b not in _PRINTABLE]
ALPHABET = {b: chr(b) for b in _PRINTABLE} | {
    b: chr(256 + i) for i, b in enumerate(_OTHERS)}
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": True,
              "trim_offsets": True, "use_regex": True}


def spell(text):
    """Of a text or of bytes."""
    data = text.encode() if isinstance(text, str) else text
    return "".join(ALPHABET[b] for b in data)


def added(number, content, special=False, normalized=False):
    return {"id": number, "content": content, "single_word": False,
            "lstrip": False, "rstrip": False, "normalized": normalized,
            "special": special}


def tokenizer(vocab, added_tokens=(), decoder=None):
    """`vocab`: token -> id, or texts whose ids are their places."""
    if not isinstance(vocab, dict):
        vocab = {spell(text): i for i, text in enumerate(vocab)}
    return {"version": "1.0", "truncation": None, "padding": None,
            "added_tokens": list(added_tokens), "normalizer": None,
            "pre_tokenizer": None, "post_processor": None,
            "decoder": BYTE_LEVEL if decoder is None else decoder,
            "model": {"type": "BPE", "dropout": None, "unk_token": None,
                      "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False,
                      "byte_fallback": False, "vocab": vocab, "merges": []}}


def write(path, *args, **kw):
    path.write_text(json.dumps(tokenizer(*args, **kw), ensure_ascii=False))
    return path
