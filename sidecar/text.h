/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Text that grows.  Running out of memory sticks: nothing is added any more,
 * and who made it looks once, at the end.  (A FILE of open_memstream can lose
 * bytes without its error indicator.)
 */
#ifndef ENGRAMD_TEXT_H
#define ENGRAMD_TEXT_H

#include <stdbool.h>
#include <stddef.h>

#include "engram_error.h"

struct text { /* zeroed: empty */
	char *bytes;
	size_t len, size;
	bool failed;
};

void text_put(struct text *text, const char *bytes, size_t len);
void text_puts(struct text *text, const char *string);
void text_printf(struct text *text, const char *fmt, ...) ENGRAM_PRINTF(2, 3);
/* What there is, malloc'd and the caller's, and its length; NULL if memory
 * ran out. */
char *text_take(struct text *text, size_t *len);

#endif
