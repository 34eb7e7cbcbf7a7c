/* SPDX-License-Identifier: Apache-2.0 */
/* "hash" of a table: how token ids become row numbers. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "config_parts.h"

#define NGRAM_MAX 16
#define HEADS_MAX 256

static const char *const id_names[] = {"compressed", "raw", NULL};

static void read_layers(struct json_view *v, struct table_format *f)
{
	json_t *array;

	json_view_require(v, "layers",
			  "the ids of the model's layers with a "
			  "table, in its order");
	array = json_view_array(v, "layers", 1, ENGRAM_LAYERS_MAX);
	if (array)
		f->num_layers = config_layers(v, array, f->layer_ids);
}

static void read_ngrams(struct json_view *v, struct table_format *f)
{
	json_view_require(v, "max_ngram", "the longest n-gram, in tokens");
	json_view_require(v, "heads", "the hash heads of each n-gram size");
	f->max_ngram = (uint32_t)json_view_int(v, "max_ngram", 2, NGRAM_MAX, 2);
	f->min_ngram = (uint32_t)json_view_int(v, "min_ngram", 1, NGRAM_MAX, 2);
	f->num_heads = (uint32_t)json_view_int(v, "heads", 1, HEADS_MAX, 1);
	if (f->min_ngram > f->max_ngram)
		config_fault(v, "min_ngram", "lower it, or raise max_ngram",
			     "%" PRIu32 " is above max_ngram %" PRIu32,
			     f->min_ngram, f->max_ngram);
	else
		f->num_cols = (f->max_ngram - f->min_ngram + 1) * f->num_heads;
}

static void read_ids(struct json_view *v, struct table_format *f)
{
	json_view_require(v, "vocab_size", "the number of raw token ids");
	json_view_require(v, "pad_id",
			  "the raw id of the token that stands "
			  "before a text");
	f->raw_ids = json_view_enum(v, "ids", id_names, 0) == 1;
	f->vocab_size =
		(uint32_t)json_view_int(v, "vocab_size", 1, INT32_MAX, 1);
	f->raw_pad_id = (uint32_t)json_view_int(v, "pad_id", 0, INT32_MAX, 0);
	f->compressed_vocab_size = (uint32_t)json_view_int(
		v, "compressed_vocab_size", 1, INT32_MAX, f->vocab_size);
	if (f->raw_pad_id >= f->vocab_size)
		config_fault(v, "pad_id", "give an id below vocab_size",
			     "%" PRIu32 " is not below vocab_size %" PRIu32,
			     f->raw_pad_id, f->vocab_size);
	if (!f->raw_ids)
		json_view_require(v, "compressed_vocab_size",
				  "the number of compressed token ids");
	else if (json_view_has(v, "compressed_vocab_size"))
		config_fault(v, "compressed_vocab_size",
			     "remove it, or set ids to \"compressed\"",
			     "is for compressed ids");
}

static void read_cuts(struct json_view *v, struct table_format *f)
{
	json_t *array =
		json_view_array(v, "cut_tokens", 1, ENGRAM_SEGMENT_CUTS);
	char where[64];
	size_t i;

	for (i = 0; i < json_array_size(array); i++) {
		const json_t *value = json_array_get(array, i);
		const json_int_t id = json_integer_value(value);

		snprintf(where, sizeof(where), "cut_tokens[%zu]", i);
		if (!json_is_integer(value) || id < 0 || id >= f->vocab_size) {
			config_fault(v, where,
				     "give the raw id of a token that ends a "
				     "text",
				     "must be an integer from 0 to %" PRIu32,
				     f->vocab_size - 1);
			return;
		}
		f->cut_tokens[f->num_cuts++] = (uint32_t)id;
	}
}

/* One layer's numbers. */
static void read_row(struct json_view *v, const char *key, size_t layer,
		     const json_t *row, size_t count, int64_t max, int64_t *out)
{
	const char *why = max == INT32_MAX
				  ? "row numbers are int32"
				  : "products with the largest id must stay "
				    "below 2^63, else remainders are negative";
	char where[64];
	size_t i;

	snprintf(where, sizeof(where), "%s[%zu]", key, layer);
	if (!json_is_array(row) || json_array_size(row) != count) {
		config_fault(v, where, "give one list for each layer",
			     "must be a list of %zu numbers", count);
		return;
	}
	for (i = 0; i < count; i++) {
		const json_t *value = json_array_get(row, i);

		out[i] = json_integer_value(value);
		if (json_is_integer(value) && out[i] >= 1 && out[i] <= max)
			continue;
		snprintf(where, sizeof(where), "%s[%zu][%zu]", key, layer, i);
		if (json_is_integer(value))
			config_fault(v, where, why,
				     "is %" PRId64
				     ", must be an integer from 1 to %" PRId64,
				     out[i], max);
		else
			config_fault(v, where, why,
				     "must be an integer from 1 to %" PRId64,
				     max);
		return;
	}
}

/* A list of `count` numbers for each layer; NULL when absent. */
static int64_t *read_matrix(struct json_view *v, const char *key, json_t *array,
			    const struct table_format *f, size_t count,
			    int64_t max)
{
	int64_t *out;
	size_t i;

	if (!array || v->failed)
		return NULL;
	if (json_array_size(array) != f->num_layers) {
		config_fault(v, key, "give one list for each layer",
			     "has %zu lists, layers has %" PRIu32,
			     json_array_size(array), f->num_layers);
		return NULL;
	}
	out = calloc(f->num_layers * count, sizeof(*out));
	if (!out) {
		config_no_memory(v);
		return NULL;
	}
	for (i = 0; i < f->num_layers; i++)
		read_row(v, key, i, json_array_get(array, i), count, max,
			 out + i * count);
	return out;
}

static void read_moduli(struct json_view *v, struct table_format *f)
{
	json_t *moduli = json_view_array(v, "moduli", 1, ENGRAM_LAYERS_MAX);

	f->prime_start =
		(uint32_t)json_view_int(v, "prime_start", 2, INT32_MAX, 0);
	f->moduli = read_matrix(v, "moduli", moduli, f, f->num_cols, INT32_MAX);
	if (!moduli == !f->prime_start)
		config_fault(v, moduli ? "moduli" : "prime_start",
			     "give the moduli that the model stores, or the "
			     "number that its search for primes starts at",
			     moduli ? "stands beside prime_start"
				    : "is missing, and moduli too");
}

static void read_multipliers(struct json_view *v, struct table_format *f)
{
	json_t *array = json_view_array(v, "multipliers", 1, ENGRAM_LAYERS_MAX);
	const int64_t most =
		f->compressed_vocab_size > 1
			? INT64_MAX / (f->compressed_vocab_size - 1)
			: INT64_MAX;

	f->multipliers =
		read_matrix(v, "multipliers", array, f, f->max_ngram, most);
}

void config_read_hash(struct json_view *top, struct table_format *f)
{
	struct json_view v;

	if (!config_section_begin(top, &v, "hash"))
		return;
	read_layers(&v, f);
	read_ngrams(&v, f);
	read_ids(&v, f);
	read_cuts(&v, f);
	read_moduli(&v, f);
	read_multipliers(&v, f);
	config_section_end(top, &v);
	if (f->dim)
		return;
	config_fault(top, "rows",
		     "add \"rows\": {\"dim\": N}, the elements of a row",
		     "with \"hash\", \"rows\" must give \"dim\"");
}

void table_format_free(struct table_format *f)
{
	free(f->moduli);
	free(f->multipliers);
	f->moduli = NULL;
	f->multipliers = NULL;
}
