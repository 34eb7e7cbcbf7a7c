/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "token_key.h"
#include "unicode_fold.h"

/* Stands for a token that is one space while spaces are stripped, and so a
 * text that has this character itself gets a space for it. */
#define LONE_SPACE  0xe000
#define REPLACEMENT 0xfffd
#define UTF8_MAX    4

static bool reserve(void **memory, size_t *room, size_t wanted, size_t size)
{
	void *more;

	if (wanted <= *room)
		return true;
	wanted = wanted < 128 ? 256 : 2 * wanted;
	more = realloc(*memory, wanted * size);
	if (!more)
		return false;
	*memory = more;
	*room = wanted;
	return true;
}

/* The byte that a character of the byte-level alphabet stands for, or -1:
 * printable ones of Latin-1 stand for themselves, the 68 others are counted
 * from U+0100. */
static int alphabet_byte(int32_t point)
{
	if ((point >= 0x21 && point <= 0x7e) ||
	    (point >= 0xa1 && point <= 0xac) ||
	    (point >= 0xae && point <= 0xff))
		return point;
	if (point >= 0x100 && point <= 0x120)
		return point - 0x100;
	if (point >= 0x121 && point <= 0x142)
		return point - 0x121 + 0x7f;
	return point == 0x143 ? 0xad : -1;
}

static utf8proc_ssize_t next_point(const char *text, size_t len, int32_t *point)
{
	return utf8proc_iterate((const utf8proc_uint8_t *)text,
				(utf8proc_ssize_t)len, point);
}

/* The bytes that the token stands for; those of the token itself when not all
 * of its characters are of the alphabet, as in most added tokens. */
static size_t decode(char *text, const char *token, size_t len)
{
	size_t n = 0;

	for (size_t at = 0; at < len;) {
		int32_t point;
		const utf8proc_ssize_t step =
			next_point(token + at, len - at, &point);
		const int byte = step > 0 ? alphabet_byte(point) : -1;

		if (byte < 0) {
			memcpy(text, token, len);
			return len;
		}
		text[n++] = (char)byte;
		at += (size_t)step;
	}
	return n;
}

/* Fold the text into room->points, runs of spaces to one. */
enum folded { FOLDED, FOLD_PARTIAL, FOLD_NO_MEMORY };
static enum folded fold(struct token_key_room *room, size_t len, size_t *count)
{
	int32_t out[UNICODE_FOLD_MAX];
	size_t n = 0;

	for (size_t at = 0; at < len;) {
		int32_t point;
		const utf8proc_ssize_t step =
			next_point(room->text + at, len - at, &point);
		size_t folded;

		if (step <= 0 || point == REPLACEMENT)
			return FOLD_PARTIAL;
		at += (size_t)step;
		if (!reserve((void **)&room->points, &room->points_room,
			     n + UNICODE_FOLD_MAX, sizeof(*room->points)))
			return FOLD_NO_MEMORY;
		folded = unicode_fold(point, out);
		for (size_t i = 0; i < folded; i++) {
			const bool space = out[i] == ' ' || out[i] == '\t' ||
					   out[i] == '\r' || out[i] == '\n';

			if (space && n && room->points[n - 1] == ' ')
				continue;
			room->points[n++] = space ? ' ' : out[i];
		}
	}
	*count = n;
	return FOLDED;
}

/* Strip and write out in UTF-8; there is room. */
static size_t finish(struct token_key_room *room, size_t count)
{
	const int32_t *points = room->points;
	size_t begin = 0, n = 0;

	if (count == 1 && points[0] == ' ') {
		room->key[0] = ' ';
		return 1;
	}
	while (count > begin && unicode_is_space(points[count - 1]))
		count--;
	while (begin < count && unicode_is_space(points[begin]))
		begin++;
	for (; begin < count; begin++)
		n += (size_t)utf8proc_encode_char(
			points[begin] == LONE_SPACE ? ' ' : points[begin],
			(utf8proc_uint8_t *)room->key + n);
	return n;
}

bool token_key(struct token_key_room *room, const char *token, size_t len,
	       const char **key, size_t *key_len)
{
	size_t text_len, count = 0;

	if (!token)
		len = 0;
	/* One more, so that there is memory for an empty text. */
	if (!reserve((void **)&room->text, &room->text_room, len + 1, 1))
		return false;
	text_len = decode(room->text, token, len);
	switch (fold(room, text_len, &count)) {
	case FOLD_NO_MEMORY:
		return false;
	case FOLD_PARTIAL: /* nothing to normalise: the token as spelt */
		*key = token;
		*key_len = len;
		return true;
	case FOLDED:
		break;
	}
	if (!reserve((void **)&room->key, &room->key_room, UTF8_MAX * count + 1,
		     1))
		return false;
	*key = room->key;
	*key_len = finish(room, count);
	if (!*key_len) {
		*key = room->text;
		*key_len = text_len;
	}
	return true;
}

void token_key_room_free(struct token_key_room *room)
{
	free(room->text);
	free(room->points);
	free(room->key);
	memset(room, 0, sizeof(*room));
}
