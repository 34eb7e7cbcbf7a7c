/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What makes two tokens the same one to the hash: the key that each is given
 * by its text, " The", "the" and "THE" having the same.
 */
#ifndef ENGRAMD_TOKEN_KEY_H
#define ENGRAMD_TOKEN_KEY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Room that is used again for the next token; zero it first. */
struct token_key_room {
	char *text;
	size_t text_room;
	int32_t *points;
	size_t points_room; /* elements */
	char *key;
	size_t key_room;
};

/*
 * The key of a token as a byte-level vocabulary spells it, `len` bytes of
 * UTF-8; NULL is an id that no token has.  *key points into `room` or to the
 * token, until the next call, and may be of no bytes.  False: out of memory.
 */
bool token_key(struct token_key_room *room, const char *token, size_t len,
	       const char **key, size_t *key_len);
void token_key_room_free(struct token_key_room *room);

#endif
