/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files beside tokenizer.json may name tokens too.  The `transformers` library
 * adds those that tokenizer.json does not have when it loads a model, by rules
 * that change with its version; it also writes them all into tokenizer.json
 * when it saves.  So what is not there is refused here, by name.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "identity.h"
#include "tokenizer.h"

#define BESIDE_BYTES_MAX (256u << 20)

struct beside {
	const struct tokenizer *tokenizer;
	const json_t *vocab;
	const struct json_source *src; /* of the file being looked at */
	struct engram_error *err;
	enum engram_status status;
};

/* A token as these files have it: its text, or an object with "content". */
static const char *token_text(const json_t *value)
{
	if (json_is_object(value))
		value = json_object_get(value, "content");
	return json_string_value(value);
}

/* The token, a `what` of the file, must have an id. */
static void look(struct beside *b, const char *what, const char *text)
{
	if (b->status || !text || !*text || json_object_get(b->vocab, text) ||
	    json_object_get(b->tokenizer->added, text))
		return;
	b->status = engram_error_set(b->err, ENGRAM_ECHECKPOINT,
				     "%s: %s \"%s\" is not in tokenizer.json",
				     b->src->name, what, text);
	engram_error_path(b->err, "%s", b->src->name);
	engram_error_fix(b->err, "the reference adds it when it loads the "
				 "model: have transformers write a "
				 "tokenizer.json that has all tokens, by "
				 "AutoTokenizer.from_pretrained(DIR)"
				 ".save_pretrained(DIR)");
}

static void look_at_all(struct beside *b, const char *what, json_t *list)
{
	const char *key;
	json_t *value;
	size_t i;

	json_array_foreach(list, i, value)
	{
		look(b, what, token_text(value));
	}
	json_object_foreach(list, key, value)
	{
		look(b, what, token_text(value));
	}
}

static bool ends_with(const char *text, const char *end)
{
	const size_t len = strlen(text), n = strlen(end);

	return len >= n && !strcmp(text + len - n, end);
}

/* bos_token and the like, and lists of more. */
static void look_at_named(struct beside *b)
{
	static const char *const lists[] = {"additional_special_tokens",
					    "extra_special_tokens"};
	json_t *value, *root = b->src->root;
	const char *key;
	size_t i;

	json_object_foreach(root, key, value)
	{
		if (ends_with(key, "_token"))
			look(b, key, token_text(value));
	}
	for (i = 0; i < sizeof(lists) / sizeof(lists[0]); i++)
		look_at_all(b, lists[i], json_object_get(root, lists[i]));
}

static void look_at_config(struct beside *b, bool *has_all)
{
	json_t *decoder = json_object_get(b->src->root, "added_tokens_decoder");

	*has_all = decoder;
	look_at_all(b, "added_tokens_decoder", decoder);
	look_at_named(b);
}

/* {"token": id} */
static void look_at_added(struct beside *b)
{
	const char *key;
	json_t *id;

	json_object_foreach(b->src->root, key, id)
	{
		look(b, "token", key);
	}
}

/* True if there is such a file; b->status if it can not be read. */
static bool open_beside(struct beside *b, const char *file, const char *name,
			struct json_source *src)
{
	const char *slash = strrchr(file, '/');
	const int dir = slash ? (int)(slash + 1 - file) : 0;
	struct stat st;
	bool there;
	char *path;

	if (b->status)
		return false;
	if (asprintf(&path, "%.*s%s", dir, file, name) < 0) {
		b->status = engram_error_set(b->err, ENGRAM_ENOMEM,
					     "no memory to read a tokenizer");
		return false;
	}
	there = !lstat(path, &st) || errno != ENOENT;
	/* model_max_length is 10^30 in many. */
	if (there)
		b->status = identity_dangling(
			path,
			json_source_read_reals(src, path, BESIDE_BYTES_MAX,
					       ENGRAM_ECHECKPOINT, b->err),
			b->err);
	free(path);
	b->src = src;
	return there && !b->status;
}

enum engram_status tokenizer_check_beside(const struct json_source *src,
					  const struct tokenizer *tokenizer,
					  const char *file,
					  struct engram_error *err)
{
	const json_t *model = json_object_get(src->root, "model");
	struct beside b = {
		.tokenizer = tokenizer,
		.vocab = json_object_get(model, "vocab"),
		.err = err,
	};
	struct json_source other;
	bool has_all = false;

	if (open_beside(&b, file, "tokenizer_config.json", &other)) {
		look_at_config(&b, &has_all);
		json_source_free(&other);
	}
	/* Of models saved before these stood in tokenizer_config.json. */
	if (has_all || b.status)
		return b.status;
	if (open_beside(&b, file, "special_tokens_map.json", &other)) {
		look_at_named(&b);
		json_source_free(&other);
	}
	if (open_beside(&b, file, "added_tokens.json", &other)) {
		look_at_added(&b);
		json_source_free(&other);
	}
	return b.status;
}
