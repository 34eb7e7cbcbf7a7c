/* SPDX-License-Identifier: Apache-2.0 */
#include "text.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_BYTES 4096

/* Room for `len` more and a NUL. */
static bool reserve(struct text *text, size_t len)
{
	size_t size = text->size ? text->size : FIRST_BYTES;
	char *bytes;

	if (text->failed)
		return false;
	while (size - text->len <= len)
		size *= 2;
	if (size == text->size)
		return true;
	bytes = realloc(text->bytes, size);
	if (!bytes) {
		text->failed = true;
		return false;
	}
	text->bytes = bytes;
	text->size = size;
	return true;
}

void text_put(struct text *text, const char *bytes, size_t len)
{
	if (!reserve(text, len))
		return;
	memcpy(text->bytes + text->len, bytes, len);
	text->len += len;
}

void text_puts(struct text *text, const char *string)
{
	text_put(text, string, strlen(string));
}

void text_printf(struct text *text, const char *fmt, ...)
{
	va_list args, again;
	int len;

	va_start(args, fmt);
	va_copy(again, args);
	len = vsnprintf(NULL, 0, fmt, args);
	if (len < 0)
		text->failed = true;
	else if (reserve(text, (size_t)len))
		text->len += (size_t)vsnprintf(text->bytes + text->len,
					       (size_t)len + 1, fmt, again);
	va_end(again);
	va_end(args);
}

char *text_take(struct text *text, size_t *len)
{
	char *bytes = NULL;

	if (reserve(text, 0)) {
		bytes = text->bytes;
		bytes[text->len] = '\0';
		*len = text->len;
	} else {
		free(text->bytes);
	}
	*text = (struct text){0};
	return bytes;
}
