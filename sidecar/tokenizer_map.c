/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "token_key.h"
#include "tokenizer.h"

/* The keys so far, by their hashes, in a table that is at most half full. */
struct key {
	uint64_t hash;
	char *text; /* NULL: the slot is free */
	size_t len;
	int32_t id;
};

struct keys {
	struct key *slots;
	size_t mask;
	int32_t count;
};

static bool keys_begin(struct keys *keys, uint64_t tokens)
{
	size_t slots = 16;

	while (slots < 2 * tokens)
		slots *= 2;
	keys->slots = calloc(slots, sizeof(*keys->slots));
	keys->mask = slots - 1;
	keys->count = 0;
	return keys->slots;
}

static void keys_free(struct keys *keys)
{
	if (!keys->slots)
		return;
	for (size_t i = 0; i <= keys->mask; i++)
		free(keys->slots[i].text);
	free(keys->slots);
}

/* The number of the key, the next one if it is new; -1: no memory. */
static int32_t keys_number(struct keys *keys, const char *text, size_t len)
{
	const uint64_t hash = XXH3_64bits(text, len);
	size_t at = hash & keys->mask;
	struct key *k;

	for (; k = &keys->slots[at], k->text; at = (at + 1) & keys->mask)
		if (k->hash == hash && k->len == len &&
		    !memcmp(k->text, text, len))
			return k->id;
	k->text = malloc(len + 1);
	if (!k->text)
		return -1;
	memcpy(k->text, text, len);
	k->hash = hash;
	k->len = len;
	k->id = keys->count++;
	return k->id;
}

static bool number_all(const struct tokenizer *t, struct keys *keys,
		       int32_t *map)
{
	struct token_key_room room = {0};
	bool fits = keys_begin(keys, t->len);

	for (uint64_t i = 0; fits && i < t->len; i++) {
		const char *token = t->tokens[i], *key;
		size_t len;

		fits = token_key(&room, token, token ? strlen(token) : 0, &key,
				 &len);
		if (fits)
			map[i] = keys_number(keys, key, len);
		fits = fits && map[i] >= 0;
	}
	token_key_room_free(&room);
	return fits;
}

enum engram_status tokenizer_map(const struct tokenizer *tokenizer,
				 int32_t **map, uint64_t *distinct,
				 struct engram_error *err)
{
	struct keys keys = {0};
	bool fits;

	*map = malloc((tokenizer->len + 1) * sizeof(**map));
	fits = *map && number_all(tokenizer, &keys, *map);
	*distinct = (uint64_t)keys.count;
	keys_free(&keys);
	if (fits)
		return ENGRAM_OK;
	free(*map);
	*map = NULL;
	return engram_error_set(err, ENGRAM_ENOMEM,
				"no memory for a token map");
}
