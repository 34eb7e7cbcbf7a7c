#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write sidecar/unicode_exceptions.h: the code points that the `tokenizers`
library folds (NFKC, NFD, StripAccents, Lowercase) in another way than
libutf8proc does, whichever Unicode that has from 14 on.

    python3 -m venv v && v/bin/pip install tokenizers unicodedata2
    v/bin/python tests/token_map/make_exceptions.py >sidecar/unicode_exceptions.h
    clang-format -i sidecar/unicode_exceptions.h

Compared are the unicodedata of Python (3.11 has Unicode 14) and unicodedata2
(the newest): a difference that some version between has is one of these two's,
since characters are only ever added.
Tests compare the result with the library over all code points.
"""
import sys
import unicodedata

import tokenizers
import unicodedata2
from tokenizers import normalizers

REFERENCE = normalizers.Sequence([
    normalizers.NFKC(), normalizers.NFD(), normalizers.StripAccents(),
    normalizers.Lowercase()])


def fold(data, char):
    """By the tables of one Unicode version; lower case is always Python's,
    so that what it lacks and the library has is an exception."""
    return "".join(c.lower() for c in data.normalize("NFKD", char)
                   if not data.category(c).startswith("M"))


def exceptions():
    for point in range(0x110000):
        if 0xd800 <= point <= 0xdfff:
            continue
        char = chr(point)
        want = REFERENCE.normalize_str(char)
        if want == fold(unicodedata, char) == fold(unicodedata2, char):
            continue
        if len(want) > 1:
            sys.exit(f"U+{point:04X} becomes several: {ascii(want)}")
        yield point, None if not want else ord(want) - point


def ranges():
    """(first, last, shift), the same shift in each."""
    run = None
    for point, shift in exceptions():
        if run and run[1] == point - 1 and run[2] == shift:
            run[1] = point
            continue
        if run:
            yield run
        run = [point, point, shift]
    yield run


def main():
    print(f"""/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Written by tests/token_map/make_exceptions.py, tokenizers {tokenizers.__version__},
 * Unicode {unicodedata.unidata_version} and {unicodedata2.unidata_version}.
 */
#ifndef ENGRAMD_UNICODE_EXCEPTIONS_H
#define ENGRAMD_UNICODE_EXCEPTIONS_H

#include <stdint.h>

#define UNICODE_DROPPED INT32_MIN

/* Code points that become one other, `shift` away, or none; 0: the same. */
struct unicode_exception {{
	int32_t first, last, shift;
}};

static const struct unicode_exception unicode_exceptions[] = {{""")
    for first, last, shift in ranges():
        text = "UNICODE_DROPPED" if shift is None else shift
        print(f"\t{{0x{first:04x}, 0x{last:04x}, {text}}},")
    print("""};

#define UNICODE_EXCEPTIONS \\
	(sizeof(unicode_exceptions) / sizeof(unicode_exceptions[0]))

#endif""")


main()
