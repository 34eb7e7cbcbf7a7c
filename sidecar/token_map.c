/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "json.h"
#include "token_map.h"
#include "tokenizer.h"

#define MAP_BYTES_MAX	(256u << 20)
#define MAP_ENTRIES_MAX (UINT64_C(1) << 28)

static json_t *entries(const struct json_source *src, struct json_view *v,
		       struct engram_error *err)
{
	if (json_is_array(src->root))
		return src->root;
	json_view_begin(v, src->root, "", src, ENGRAM_ECHECKPOINT, err);
	json_view_require(v, "token_map", "an array of compressed ids");
	return json_view_array(v, "token_map", 1, MAP_ENTRIES_MAX);
}

/* How many of 0..compressed-1 occur. */
static enum engram_status copy(const json_t *array, const char *file,
			       uint32_t compressed, int32_t *out,
			       uint64_t *distinct, struct engram_error *err)
{
	uint8_t *seen = calloc((size_t)compressed / 8 + 1, 1);

	if (!seen)
		return engram_error_set(err, ENGRAM_ENOMEM,
					"no memory for a token map");
	*distinct = 0;
	for (size_t i = 0; i < json_array_size(array); i++) {
		const json_t *value = json_array_get(array, i);
		const json_int_t id = json_integer_value(value);

		if (!json_is_integer(value) || id < 0 || id >= compressed) {
			free(seen);
			return engram_error_set(
				err, ENGRAM_ECHECKPOINT,
				"%s: token_map[%zu]: must be a number "
				"0..%" PRIu32,
				file, i, compressed - 1);
		}
		*distinct += !(seen[id / 8] >> id % 8 & 1);
		seen[id / 8] |= (uint8_t)(1u << id % 8);
		out[i] = (int32_t)id;
	}
	free(seen);
	return ENGRAM_OK;
}

/* Every hash multiplier derives from how many there are. */
static enum engram_status check_count(const char *file, uint64_t distinct,
				      uint32_t compressed, const char *stated,
				      struct engram_error *err)
{
	if (distinct == compressed)
		return ENGRAM_OK;
	engram_error_set(err, ENGRAM_EGEOMETRY,
			 "%s: %" PRIu64 " compressed ids occur, %s %" PRIu32,
			 file, distinct, stated, compressed);
	engram_error_path(err, "%s", file);
	engram_error_figures(err, compressed, distinct);
	engram_error_fix(err, "every hash multiplier derives from that "
			      "number: use the map or the tokenizer.json that "
			      "belongs to this model");
	return ENGRAM_EGEOMETRY;
}

static enum engram_status derive(const struct json_source *src,
				 const char *file, int32_t **out, uint64_t *len,
				 uint64_t *distinct, struct engram_error *err)
{
	struct tokenizer tokenizer;
	enum engram_status status = tokenizer_read(src, &tokenizer, err);

	if (status) {
		engram_error_path(err, "%s", file);
		return status;
	}
	*len = tokenizer.len;
	status = tokenizer_check_beside(src, &tokenizer, file, err);
	if (!status)
		status = tokenizer_map(&tokenizer, out, distinct, err);
	tokenizer_free(&tokenizer);
	return status;
}

static enum engram_status take(const struct json_source *src, const char *file,
			       uint32_t compressed, int32_t **out,
			       uint64_t *len, uint64_t *distinct,
			       struct engram_error *err)
{
	struct json_view v = {0};
	json_t *array = entries(src, &v, err);

	if (!array) {
		engram_error_fix(
			err,
			"give the model's tokenizer.json, or {\"token_map\": "
			"[...]} with the compressed id of each "
			"token");
		return json_view_result(&v);
	}
	*len = json_array_size(array);
	*out = malloc((*len + 1) * sizeof(**out));
	if (!*out)
		return engram_error_set(err, ENGRAM_ENOMEM,
					"no memory for a token map");
	return copy(array, file, compressed, *out, distinct, err);
}

enum engram_status token_map_read(const char *file,
				  uint32_t compressed_vocab_size,
				  const char *stated, int32_t **out,
				  uint64_t *len, uint64_t *hash,
				  struct engram_error *err)
{
	struct json_source src;
	enum engram_status status;
	uint64_t distinct = 0;

	*out = NULL;
	status = json_source_read(&src, file, MAP_BYTES_MAX, ENGRAM_ECHECKPOINT,
				  err);
	if (status)
		return status;
	*hash = XXH3_64bits(src.text, src.len);
	if (tokenizer_is(src.root)) {
		status = derive(&src, file, out, len, &distinct, err);
	} else {
		status = take(&src, file, compressed_vocab_size, out, len,
			      &distinct, err);
		if (status)
			engram_error_path(err, "%s", file);
	}
	json_source_free(&src);
	if (!status)
		status = check_count(file, distinct, compressed_vocab_size,
				     stated, err);
	if (!status)
		return ENGRAM_OK;
	free(*out);
	*out = NULL;
	return status;
}
