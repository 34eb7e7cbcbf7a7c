/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engram_geometry.h"
#include "golden.h"

#define MAX_LAYERS 8

static int64_t number(json_t *layout, const char *key, int64_t otherwise)
{
	json_t *value = json_object_get(layout, key);

	return json_is_integer(value) ? json_integer_value(value) : otherwise;
}

/* Compares an array of any nesting with flat values; -1 when they differ. */
static int compare(json_t *array, const int64_t **values, const int64_t *end)
{
	json_t *item;
	size_t i;

	if (json_is_integer(array))
		return *values < end &&
				       json_integer_value(array) == *(*values)++
			       ? 0
			       : -1;
	if (!json_is_array(array))
		return -1;
	json_array_foreach(array, i,
			   item) if (compare(item, values, end)) return -1;
	return 0;
}

static int check_array(json_t *layout, const char *key, const int64_t *values,
		       size_t count, char *why)
{
	json_t *want = json_object_get(layout, key);
	const int64_t *at = values;

	if (!want ||
	    (!compare(want, &at, values + count) && at == values + count))
		return 0;
	snprintf(why, GOLDEN_WHY, "%s differ at %zu", key,
		 (size_t)(at - values));
	return -1;
}

/* What a layout does not say is that of the released DeepSeek-V4.1-Flash. */
static int check_layout(json_t *layout, char *why)
{
	json_t *ids = json_object_get(layout, "engram_layer_ids"), *id;
	int32_t layer_ids[MAX_LAYERS] = {1, 14};
	struct engram_geometry_config config = {
		.num_layers = 2,
		.layer_ids = layer_ids,
		.max_ngram =
			(uint32_t)number(layout, "engram_max_ngram_size", 4),
		.num_heads = (uint32_t)number(layout, "engram_n_heads", 8),
		.vocab_size =
			(uint32_t)number(layout, "engram_vocab_size", 16000000),
		.compressed_vocab_size = (uint32_t)number(
			layout, "engram_compressed_vocab_size", 99092),
	};
	struct engram_geometry *g;
	struct engram_error err;
	size_t i, layers;
	int rc;

	if (ids) {
		config.num_layers = (uint32_t)json_array_size(ids);
		if (config.num_layers > MAX_LAYERS) {
			snprintf(why, GOLDEN_WHY, "too many layers");
			return -1;
		}
		json_array_foreach(ids, i, id) layer_ids[i] =
			(int32_t)json_integer_value(id);
	}
	if (engram_geometry_derive(&config, &g, &err)) {
		snprintf(why, GOLDEN_WHY, "%s", err.message);
		return -1;
	}
	layers = g->num_layers;
	rc = check_array(layout, "primes", g->primes, layers * g->num_cols,
			 why) ||
	     check_array(layout, "offsets", g->offsets, layers * g->num_cols,
			 why) ||
	     check_array(layout, "multipliers", g->multipliers,
			 layers * g->max_ngram, why) ||
	     check_array(layout, "rows", g->rows, layers, why);
	engram_geometry_free(g);
	return rc ? -1 : 0;
}

int golden_layouts(const char *path, char *why)
{
	json_error_t error;
	json_t *file = json_load_file(path, 0, &error), *layout;
	size_t i, checked = 0;
	int rc = 0;

	if (!file)
		golden_die(path, "not JSON:", error.text);
	if (json_is_object(file)) {
		rc = check_layout(file, why);
		checked = 1;
	}
	json_array_foreach(file, i, layout)
	{
		rc = rc ? rc : check_layout(layout, why);
		checked++;
	}
	if (!checked)
		golden_die(path, "holds no layout", NULL);
	json_decref(file);
	return rc;
}
