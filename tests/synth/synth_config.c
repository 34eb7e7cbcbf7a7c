/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "synth.h"
#include "synth_rows.h"

static enum engram_status write_json(const struct synth *s, const char *name,
				     json_t *value, size_t flags)
{
	char path[4200];
	int failed;

	if (!value)
		return engram_error_set(s->err, ENGRAM_ENOMEM,
					"no memory for %s", name);
	snprintf(path, sizeof(path), "%s/%s", s->dir, name);
	failed = json_dump_file(value, path, flags);
	json_decref(value);
	if (failed)
		return engram_error_sys(s->err, errno, "write %s", path);
	return ENGRAM_OK;
}

static json_t *model_keys(const struct synth *s)
{
	const struct synth_options *o = s->options;
	json_t *ids = json_array(), *rows = json_array();

	for (uint32_t l = 0; l < o->num_layers; l++) {
		json_array_append_new(ids, json_integer(o->layers[l]));
		json_array_append_new(rows, json_integer(s->geometry->rows[l]));
	}
	return json_pack(
		"{s:o, s:o, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:f, s:i}",
		"engram_layer_ids", ids, "engram_num_embeddings", rows,
		"engram_max_ngram_size", (int)o->max_ngram, "engram_n_heads",
		(int)o->heads, "engram_head_dim", (int)o->dim,
		"engram_vocab_size", (int)o->engram_vocab_size,
		"engram_compressed_vocab_size", (int)o->compressed_vocab_size,
		o->flat ? "engram_pad_id" : "engram_pad_token_id",
		(int)o->pad_id, "hidden_size", (int)(2 * o->dim), "hc_mult", 4,
		"rms_norm_eps", 1e-20, "vocab_size", (int)o->vocab_size);
}

enum engram_status synth_write_config(const struct synth *s)
{
	json_t *keys = model_keys(s);

	if (!s->options->flat)
		keys = json_pack("{s:[s], s:s, s:o}", "architectures",
				 "SyntheticEngram", "model_type",
				 "synthetic_engram", "text_config", keys);
	return write_json(s, "config.json", keys, JSON_INDENT(2));
}

enum engram_status synth_write_index(const struct synth *s)
{
	const struct synth_options *o = s->options;
	json_t *map = json_object();
	char name[128], file[64];

	for (uint32_t l = 0; l < o->num_layers; l++)
		for (int scale = 0; scale < 2; scale++) {
			synth_tensor_name(o, l, scale, name);
			synth_file_name(o, synth_shard_of(o, l, scale), file);
			json_object_set_new(map, name, json_string(file));
		}
	for (uint32_t f = 0; f < o->shards; f++) {
		snprintf(name, sizeof(name), "unrelated.%u.bias", f);
		synth_file_name(o, f, file);
		json_object_set_new(map, name, json_string(file));
	}
	return write_json(s, "model.safetensors.index.json",
			  json_pack("{s:{s:I}, s:o}", "metadata", "total_size",
				    (json_int_t)synth_data_bytes(s),
				    "weight_map", map),
			  JSON_INDENT(2));
}

/*
 * Many to one, new ids in order of first appearance.  Token 1 shares the id of
 * token 0 where there is room for that, so that the pad id 2 is not its own
 * image: code that forgets to map it then gives other hashes.
 */
enum engram_status synth_write_token_map(const struct synth *s)
{
	const uint64_t vocab = s->options->vocab_size;
	const uint64_t compressed = s->options->compressed_vocab_size;
	json_t *map = json_array();
	uint64_t next = 0;

	for (uint64_t t = 0; t < vocab; t++) {
		const uint64_t r = synth_mix(~t);
		uint64_t id;

		if (vocab - t == compressed - next || t == 0 || t == 2 ||
		    (t > 2 && next < compressed && r % vocab < compressed))
			id = next < compressed ? next++ : 0;
		else
			id = r % next;
		json_array_append_new(map, json_integer((json_int_t)id));
	}
	return write_json(s, "engram_token_map.json",
			  json_pack("{s:o}", "token_map", map), JSON_COMPACT);
}
