/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "json.h"
#include "model_config.h"

#define CONFIG_BYTES_MAX (16u << 20)

static void read_layers(struct json_view *v, struct model_config *out)
{
	json_t *ids =
		json_view_array(v, "engram_layer_ids", 1, ENGRAM_LAYERS_MAX);
	json_t *rows;
	size_t i;

	json_view_require(v, "engram_num_embeddings",
			  "the number of rows of each layer's table");
	rows = json_view_array(v, "engram_num_embeddings", 1,
			       ENGRAM_LAYERS_MAX);
	if (!ids || !rows)
		return;
	if (json_array_size(ids) != json_array_size(rows)) {
		json_view_fail(v, "engram_num_embeddings",
			       "has %zu entries, engram_layer_ids has %zu",
			       json_array_size(rows), json_array_size(ids));
		return;
	}
	out->num_layers = (uint32_t)json_array_size(ids);
	for (i = 0; i < out->num_layers; i++) {
		const json_t *id = json_array_get(ids, i);
		const json_t *n = json_array_get(rows, i);
		const json_int_t layer = json_integer_value(id);
		char key[64];

		snprintf(key, sizeof(key), "engram_layer_ids[%zu]", i);
		if (!json_is_integer(id) || layer < 0 || layer > INT32_MAX)
			json_view_fail(v, key, "must be a layer number");
		for (size_t k = 0; k < i; k++)
			if (out->layer_ids[k] == layer)
				json_view_fail(v, key,
					       "names layer %" PRId64 " twice",
					       (int64_t)layer);
		snprintf(key, sizeof(key), "engram_num_embeddings[%zu]", i);
		if (!json_is_integer(n) || json_integer_value(n) < 1)
			json_view_fail(v, key, "must be a number from 1");
		out->layer_ids[i] = (int32_t)layer;
		out->num_embeddings[i] = json_integer_value(n);
	}
}

static uint32_t required(struct json_view *v, const char *key, int64_t min,
			 int64_t max, const char *what)
{
	json_view_require(v, key, what);
	return (uint32_t)json_view_int(v, key, min, max, min);
}

static void read_hash(struct json_view *v, struct model_config *out)
{
	/* The reference's own flat file has the shorter name. */
	const char *pad = json_view_has(v, "engram_pad_id")
				  ? "engram_pad_id"
				  : "engram_pad_token_id";

	read_layers(v, out);
	out->min_ngram = 2;
	out->max_ngram = required(v, "engram_max_ngram_size", 2, 16,
				  "the longest n-gram, in tokens");
	out->num_heads = required(v, "engram_n_heads", 1, 256,
				  "the hash heads of each n-gram size");
	out->dim = required(v, "engram_head_dim", 32, 16384,
			    "the elements of a row");
	if (out->dim % 32)
		json_view_fail(v, "engram_head_dim",
			       "must be a multiple of 32, not %" PRIu32,
			       out->dim);
	out->engram_vocab_size =
		required(v, "engram_vocab_size", 2, INT32_MAX,
			 "the number that the prime search starts at");
	out->compressed_vocab_size =
		required(v, "engram_compressed_vocab_size", 1, INT32_MAX,
			 "the number of compressed token ids");
	out->raw_pad_id = required(v, pad, 0, INT32_MAX, "the pad token");
}

/* What users and the gate want to know; none of it has to be there. */
static void read_model(struct json_view *v, struct model_config *out)
{
	if (!out->vocab_size)
		out->vocab_size = (uint32_t)json_view_int(v, "vocab_size", 1,
							  INT32_MAX, 0);
	out->hidden_size =
		(uint32_t)json_view_int(v, "hidden_size", 1, 1 << 20, 0);
	out->hc_mult = (uint32_t)json_view_int(v, "hc_mult", 1, 1024, 0);
	out->rms_norm_eps = json_view_real(v, "rms_norm_eps", 0, 1, 0);
}

static enum engram_status read_root(const struct json_source *src, bool hash,
				    struct model_config *out,
				    struct engram_error *err)
{
	json_t *text = json_object_get(src->root, "text_config");
	struct json_view v;

	if (hash ? json_object_get(text, "engram_layer_ids") != NULL
		 : json_is_object(text)) {
		json_view_begin(&v, text, "text_config", src,
				ENGRAM_ECHECKPOINT, err);
	} else {
		json_view_begin(&v, src->root, "", src, ENGRAM_ECHECKPOINT,
				err);
		if (!v.failed && hash &&
		    !json_view_has(&v, "engram_layer_ids")) {
			json_view_fail(&v, NULL,
				       "no \"engram_layer_ids\", neither at "
				       "the top level nor under "
				       "\"text_config\"");
			engram_error_fix(err, "this is no model with Engram "
					      "tables; name another directory, "
					      "or describe them in the "
					      "table's \"hash\"");
		}
	}
	if (hash)
		read_hash(&v, out);
	read_model(&v, out);
	return json_view_result(&v);
}

void model_config_of_format(const struct table_format *f,
			    struct model_config *out)
{
	memset(out, 0, sizeof(*out));
	out->num_layers = f->num_layers;
	memcpy(out->layer_ids, f->layer_ids, sizeof(out->layer_ids));
	out->min_ngram = f->min_ngram;
	out->max_ngram = f->max_ngram;
	out->num_heads = f->num_heads;
	out->dim = f->dim;
	out->engram_vocab_size = f->prime_start;
	out->compressed_vocab_size = f->compressed_vocab_size;
	out->vocab_size = f->vocab_size;
	out->raw_pad_id = f->raw_pad_id;
	out->raw_ids = f->raw_ids;
	out->num_cuts = f->num_cuts;
	memcpy(out->cut_tokens, f->cut_tokens, sizeof(out->cut_tokens));
	out->moduli = f->moduli;
	out->multipliers = f->multipliers;
}

enum engram_status model_config_read(const char *file, bool hash,
				     struct model_config *out,
				     uint64_t *header_hash,
				     struct engram_error *err)
{
	struct json_source src;
	enum engram_status status;

	status = json_source_read(&src, file, CONFIG_BYTES_MAX,
				  ENGRAM_ECHECKPOINT, err);
	if (status)
		return status;
	*header_hash = XXH3_64bits(src.text, src.len);
	status = read_root(&src, hash, out, err);
	json_source_free(&src);
	if (status)
		engram_error_path(err, "%s", file);
	return status;
}
