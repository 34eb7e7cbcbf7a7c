/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "json_memory.h"
#include "tokenizer.h"

#define TOKENS_MAX (1u << 28)

static enum engram_status no_memory(struct engram_error *err)
{
	return engram_error_set(err, ENGRAM_ENOMEM,
				"no memory to read a tokenizer");
}

bool tokenizer_is(const json_t *root)
{
	return !json_object_get(root, "token_map") &&
	       (json_object_get(root, "model") ||
		json_object_get(root, "decoder") ||
		json_object_get(root, "added_tokens"));
}

/* What to do about a tokenizer that no map can be made of. */
static void give_map(struct engram_error *err)
{
	engram_error_fix(err, "the map is made of byte-level BPE only: put "
			      "the reference's own map into "
			      "engram_token_map.json");
}

static const char *kind(const json_t *value)
{
	const char *type = json_string_value(json_object_get(value, "type"));

	return type ? type : "none";
}

static void count_step(const json_t *step, unsigned int *levels,
		       const char **other)
{
	if (!strcmp(kind(step), "ByteLevel"))
		(*levels)++;
	else if (!*other && strcmp(kind(step), "Fuse"))
		*other = kind(step);
}

/* The byte level alone makes the text of a token; Fuse only joins several. */
static enum engram_status check_decoder(const struct json_source *src,
					struct engram_error *err)
{
	const json_t *decoder = json_object_get(src->root, "decoder");
	const json_t *steps = NULL;
	const char *other = NULL;
	unsigned int levels = 0;
	struct json_view v;

	if (strcmp(kind(decoder), "Sequence"))
		count_step(decoder, &levels, &other);
	else
		steps = json_object_get(decoder, "decoders");
	for (size_t i = 0; i < json_array_size(steps); i++)
		count_step(json_array_get(steps, i), &levels, &other);
	if (!other && levels == 1)
		return ENGRAM_OK;
	json_view_begin(&v, src->root, "", src, ENGRAM_ECHECKPOINT, err);
	if (other)
		json_view_fail(&v, "decoder",
			       "is of the kind %s, not ByteLevel", other);
	else
		json_view_fail(&v, "decoder",
			       "has ByteLevel %u times, not once", levels);
	give_map(err);
	return json_view_result(&v);
}

/* model.vocab, of a model that is BPE; files that are older than "type" are
 * known by their merges. */
static json_t *read_vocab(const struct json_source *src,
			  struct engram_error *err, enum engram_status *status)
{
	struct json_view v;
	const char *type;
	json_t *model, *vocab;

	json_view_begin(&v, src->root, "", src, ENGRAM_ECHECKPOINT, err);
	json_view_require(&v, "model", "the vocabulary");
	model = json_view_object(&v, "model");
	*status = json_view_result(&v);
	if (*status)
		return NULL;
	json_view_begin(&v, model, "model", src, ENGRAM_ECHECKPOINT, err);
	type = json_view_string(
		&v, "type", json_view_has(&v, "merges") ? "BPE" : "unknown");
	if (!v.failed && strcmp(type, "BPE")) {
		json_view_fail(&v, "type", "is %s, not BPE", type);
		give_map(err);
	}
	json_view_require(&v, "vocab", "the tokens and their ids");
	vocab = json_view_object(&v, "vocab");
	if (vocab && json_object_size(vocab) > TOKENS_MAX)
		json_view_fail(&v, "vocab", "more than %u tokens", TOKENS_MAX);
	*status = json_view_result(&v);
	return *status ? NULL : vocab;
}

/* An id of the vocabulary: 32 bits, as the library has them. */
static bool is_id(const json_t *value)
{
	return json_is_integer(value) && json_integer_value(value) >= 0 &&
	       json_integer_value(value) <= UINT32_MAX;
}

/*
 * Which id the library gives each added token.  Its "id" in the file is not
 * asked: a token of the vocabulary keeps the id that it has there, others are
 * numbered from the size of the vocabulary on.
 */
static enum engram_status number_added(const struct json_source *src,
				       const json_t *vocab, json_t *ids,
				       struct engram_error *err)
{
	json_int_t next = (json_int_t)json_object_size(vocab);
	const json_t *token;
	struct json_view v;
	json_t *list;
	size_t i;

	json_view_begin(&v, src->root, "", src, ENGRAM_ECHECKPOINT, err);
	list = json_view_array(&v, "added_tokens", 0, TOKENS_MAX);
	json_array_foreach(list, i, token)
	{
		const json_t *content = json_object_get(token, "content");
		const char *text = json_string_value(content);
		const json_t *known =
			text ? json_object_get(vocab, text) : NULL;
		char key[48];

		if (!text) {
			snprintf(key, sizeof(key), "added_tokens[%zu]", i);
			json_view_fail(&v, key,
				       "must have \"content\", a string");
			break;
		}
		if (!*text || json_object_get(ids, text))
			continue;
		if (json_object_set_new_nocheck(
			    ids, text,
			    json_integer(known ? json_integer_value(known)
					       : next++)) ||
		    json_memory_failed())
			return no_memory(err);
	}
	return json_view_result(&v);
}

/* Put the tokens of an object into their places. */
static enum engram_status place(struct tokenizer *t, json_t *ids,
				const struct json_source *src, bool vocabulary,
				struct engram_error *err)
{
	struct json_view v;
	const char *token;
	json_t *id;

	json_view_begin(&v, json_object_get(src->root, "model"), "model", src,
			ENGRAM_ECHECKPOINT, err);
	json_object_foreach(ids, token, id)
	{
		const uint64_t at = (uint64_t)json_integer_value(id);

		if (!is_id(id)) {
			json_view_fail(&v, "vocab",
				       "the id of \"%s\" must be a number "
				       "0..%" PRIu32,
				       token, UINT32_MAX);
			break;
		}
		if (at >= t->len)
			continue;
		if (vocabulary && t->tokens[at]) {
			json_view_fail(&v, "vocab",
				       "\"%s\" and \"%s\" have the same id, "
				       "%" PRIu64,
				       t->tokens[at], token, at);
			break;
		}
		t->tokens[at] = token;
	}
	return json_view_result(&v);
}

static enum engram_status place_all(struct tokenizer *t, json_t *vocab,
				    json_t *added,
				    const struct json_source *src,
				    struct engram_error *err)
{
	enum engram_status status;
	const char *token;
	json_t *id;

	t->len = json_object_size(vocab);
	json_object_foreach(added, token, id)
	{
		t->len += !json_object_get(vocab, token);
	}
	t->tokens = calloc(t->len + 1, sizeof(*t->tokens));
	if (!t->tokens)
		return no_memory(err);
	status = place(t, vocab, src, true, err);
	/* Last, since what is added hides a token of the same id. */
	return status ? status : place(t, added, src, false, err);
}

enum engram_status tokenizer_read(const struct json_source *src,
				  struct tokenizer *out,
				  struct engram_error *err)
{
	enum engram_status status;
	json_t *vocab;

	memset(out, 0, sizeof(*out));
	status = check_decoder(src, err);
	if (status)
		return status;
	vocab = read_vocab(src, err, &status);
	if (status)
		return status;
	json_memory_begin();
	out->added = json_object();
	status = out->added ? number_added(src, vocab, out->added, err)
			    : no_memory(err);
	if (!status)
		status = place_all(out, vocab, out->added, src, err);
	if (status)
		tokenizer_free(out);
	return status;
}

void tokenizer_free(struct tokenizer *tokenizer)
{
	json_decref(tokenizer->added);
	free(tokenizer->tokens);
	memset(tokenizer, 0, sizeof(*tokenizer));
}
