/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the normaliser of the token map makes of one character: NFKC, NFD,
 * combining marks dropped, lower case.  None of the four looks at a
 * character's neighbours once marks are gone: composing is undone by NFD, and
 * only marks are ever reordered.
 *
 * The reference is the `tokenizers` library, whose tables are of several ages
 * (normal forms and marks of Unicode 9, lower case of the newest); where
 * libutf8proc differs, unicode_exceptions.h says what it does.
 */
#ifndef ENGRAMD_UNICODE_FOLD_H
#define ENGRAMD_UNICODE_FOLD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define UNICODE_FOLD_MAX 32

/* `point` is a Unicode scalar value.  Returns how many of out[] are written;
 * 0: it is dropped. */
size_t unicode_fold(int32_t point, int32_t out[UNICODE_FOLD_MAX]);

/* Unicode's White_Space. */
bool unicode_is_space(int32_t point);

#endif
