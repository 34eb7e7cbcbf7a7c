/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint.h"
#include "checkpoint_config.h"
#include "checkpoint_faults.h"
#include "checkpoint_files.h"
#include "checkpoint_tensors.h"
#include "failpoint.h"
#include "identity.h"
#include "model_config.h"
#include "token_map.h"

#define TOKEN_MAP_NAME "engram_token_map.json"
#define TOKENIZER_NAME "tokenizer.json"

static enum engram_status no_memory(struct engram_error *err)
{
	return engram_error_set(err, ENGRAM_ENOMEM,
				"no memory to read a checkpoint");
}

static enum engram_status check_dir(const char *dir, struct engram_error *err)
{
	enum engram_status status = ENGRAM_OK;
	struct stat st;

	if (stat(dir, &st)) {
		status = engram_error_sys(err, errno, "checkpoint %s", dir);
		engram_error_fix(err, "name the directory that holds "
				      "config.json and the safetensors files");
	} else if (!S_ISDIR(st.st_mode)) {
		status =
			engram_error_set(err, ENGRAM_ECHECKPOINT,
					 "checkpoint %s: not a directory", dir);
		engram_error_fix(err, "name the directory that holds it");
	}
	if (status)
		engram_error_path(err, "%s", dir);
	return status;
}

/* Every file is opened in the directory that a symbolic link leads to now: one
 * that is pointed elsewhere meanwhile must not give half of each.  Tables have
 * absolute paths; a relative one was typed, and is shown as it was. */
static enum engram_status resolve_dir(struct checkpoint *c, const char *dir,
				      struct engram_error *err)
{
	enum engram_status status;
	char *real;

	c->dir = strdup(dir);
	if (!c->dir)
		return no_memory(err);
	status = check_dir(dir, err);
	if (status || *dir != '/')
		return status;
	real = realpath(dir, NULL);
	if (!real) {
		status = engram_error_sys(err, errno, "checkpoint %s", dir);
		engram_error_fix(err, "load again when nothing replaces it "
				      "any more");
		engram_error_path(err, "%s", dir);
		return status;
	}
	free(c->dir);
	c->dir = real;
	return ENGRAM_OK;
}

/* Raw ids: what the hash reads is still a map, each id its own. */
static enum engram_status identity_map(struct checkpoint *c,
				       struct engram_error *err)
{
	c->token_map = calloc(c->vocab_size, sizeof(*c->token_map));
	if (!c->token_map)
		return no_memory(err);
	c->token_map_len = c->vocab_size;
	for (uint32_t i = 0; i < c->vocab_size; i++)
		c->token_map[i] = (int32_t)i;
	c->pad_id = (int32_t)c->raw_pad_id;
	return ENGRAM_OK;
}

/* The given file must be there, those that are looked for may be. */
static enum engram_status find_token_map(struct checkpoint *c,
					 const char *given, bool *there,
					 uint32_t *file,
					 struct engram_error *err)
{
	const char *const names[] = {TOKEN_MAP_NAME, TOKENIZER_NAME};
	enum engram_status status;

	*there = true;
	if (given) {
		status = checkpoint_add_file(c, given, file, err);
		if (status == ENGRAM_ENOTFOUND)
			engram_error_fix(err, "name a file in the "
					      "checkpoint's directory, or one "
					      "by its whole path, in "
					      "\"token_map\"");
		return status;
	}
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		status = checkpoint_add_file(c, names[i], file, err);
		if (status != ENGRAM_ENOTFOUND)
			return status;
	}
	*there = false;
	return ENGRAM_OK;
}

static enum engram_status read_token_map(struct checkpoint *c,
					 const char *given, const char *stated,
					 bool *there, uint32_t *file,
					 struct engram_error *err)
{
	enum engram_status status;
	uint64_t hash;

	status = find_token_map(c, given, there, file, err);
	if (status || !*there)
		return status;
	status = token_map_read(c->files[*file].path, c->compressed_vocab_size,
				stated, &c->token_map, &c->token_map_len, &hash,
				err);
	if (status)
		return status;
	c->files[*file].identity.header_hash = hash;
	if (c->raw_pad_id < c->token_map_len) {
		c->pad_id = c->token_map[c->raw_pad_id];
		return ENGRAM_OK;
	}
	engram_error_set(err, ENGRAM_EGEOMETRY,
			 "%s: pad token %" PRIu32 " is not among its %" PRIu64
			 " entries",
			 c->files[*file].path, c->raw_pad_id, c->token_map_len);
	engram_error_path(err, "%s", c->files[*file].path);
	return ENGRAM_EGEOMETRY;
}

/* The model's index of a layer, or an error that lists what it has. */
static enum engram_status layer_index(const struct checkpoint *c,
				      const struct model_config *m,
				      int32_t layer, uint32_t *index,
				      struct engram_error *err)
{
	char list[256] = "";

	for (uint32_t l = 0; l < m->num_layers; l++) {
		const size_t used = strlen(list);

		if (m->layer_ids[l] == layer) {
			*index = l;
			return ENGRAM_OK;
		}
		snprintf(list + used, sizeof(list) - used, "%s%" PRId32,
			 l ? ", " : "", m->layer_ids[l]);
	}
	engram_error_set(err, ENGRAM_ENOTFOUND,
			 "%s: the model has no Engram layer %" PRId32, c->dir,
			 layer);
	engram_error_path(err, "layers");
	engram_error_fix(err, "it has layers %s", list);
	return ENGRAM_ENOTFOUND;
}

static enum engram_status choose_layers(struct checkpoint *c,
					const struct model_config *m,
					const struct checkpoint_options *o,
					struct engram_error *err)
{
	const uint32_t n = o->layers ? o->num_layers : m->num_layers;

	c->layers = calloc(n ? n : 1, sizeof(*c->layers));
	if (!c->layers)
		return no_memory(err);
	for (uint32_t i = 0; i < n; i++) {
		struct checkpoint_layer *layer = &c->layers[i];
		enum engram_status status;

		layer->layer_id = o->layers ? o->layers[i] : m->layer_ids[i];
		status = layer_index(c, m, layer->layer_id,
				     &layer->geometry_index, err);
		if (status)
			return status;
		layer->rows =
			(uint64_t)c->geometry->rows[layer->geometry_index];
	}
	c->num_layers = n;
	return ENGRAM_OK;
}

static void note_file(struct checkpoint_layer *layer, uint32_t file)
{
	for (uint32_t i = 0; i < layer->num_files; i++)
		if (layer->files[i] == file)
			return;
	layer->files[layer->num_files++] = file;
}

static void note_tensor(struct checkpoint_layer *layer,
			const struct checkpoint_tensor *t)
{
	note_file(layer, t->file);
	for (uint32_t i = 0; i < t->num_parts; i++)
		note_file(layer, t->parts[i].file);
}

/* Which files the layer's bytes and geometry come from. */
static enum engram_status note_files(struct checkpoint_layer *layer,
				     const uint32_t *common, uint32_t n,
				     struct engram_error *err)
{
	layer->files = calloc((size_t)n + 2 + layer->weight.num_parts +
				      layer->scale.num_parts,
			      sizeof(*layer->files));
	if (!layer->files)
		return no_memory(err);
	for (uint32_t i = 0; i < n; i++)
		note_file(layer, common[i]);
	note_tensor(layer, &layer->weight);
	if (layer->scale.bytes)
		note_tensor(layer, &layer->scale);
	return ENGRAM_OK;
}

/* Several raw ids may be one compressed id. */
static enum engram_status map_cuts(struct checkpoint *c,
				   const struct model_config *m,
				   struct engram_error *err)
{
	for (uint32_t i = 0; i < m->num_cuts; i++) {
		const uint32_t raw = m->cut_tokens[i];

		if (raw < c->token_map_len) {
			c->cut_ids[c->num_cuts++] = c->token_map[raw];
			continue;
		}
		engram_error_set(err, ENGRAM_EGEOMETRY,
				 "%s: cut token %" PRIu32
				 " is not among the %" PRIu64
				 " entries of the token map",
				 c->dir, raw, c->token_map_len);
		engram_error_path(err, "hash.cut_tokens");
		engram_error_fix(err, "give the ids of tokens that the model "
				      "has");
		return ENGRAM_EGEOMETRY;
	}
	return ENGRAM_OK;
}

static enum engram_status read_tokens(struct checkpoint *c,
				      const struct model_config *m,
				      const struct checkpoint_options *o,
				      struct checkpoint_common *common,
				      struct engram_error *err)
{
	enum engram_status status;
	uint32_t file;
	bool has_map;

	if (m->raw_ids) {
		status = identity_map(c, err);
		return status ? status : map_cuts(c, m, err);
	}
	status = read_token_map(
		c, o->token_map_file,
		o->format && o->format->num_layers
			? "the table's hash has compressed_vocab_size"
			: "config.json says engram_compressed_vocab_size",
		&has_map, &file, err);
	if (status || !has_map)
		return status;
	common->files[common->count++] = file;
	return map_cuts(c, m, err);
}

static enum engram_status read_all(struct checkpoint *c,
				   const struct checkpoint_options *o,
				   struct engram_error *err)
{
	const struct table_format standard = TABLE_FORMAT_DEFAULT;
	struct checkpoint_common common = {0};
	struct checkpoint_shards shards;
	struct model_config m;
	enum engram_status status;

	status = checkpoint_read_config(c, o->format ? o->format : &standard,
					&m, &common, err);
	if (!status)
		status = choose_layers(c, &m, o, err);
	if (status)
		return status;
	status = checkpoint_fault(c, read_tokens(c, &m, o, &common, err), err);
	if (status)
		return status;
	FAILPOINT(load_described);
	status = checkpoint_shards_open(c, &shards, err);
	if (status)
		return status;
	if (shards.weight_map)
		common.files[common.count++] = shards.index_file;
	for (uint32_t i = 0; !status && i < c->num_layers; i++) {
		status = checkpoint_find_tensors(c, &shards, o, &c->layers[i],
						 err);
		if (!status)
			status = note_files(&c->layers[i], common.files,
					    common.count, err);
	}
	checkpoint_shards_free(&shards);
	return status;
}

enum engram_status checkpoint_open(const struct checkpoint_options *options,
				   struct checkpoint **out,
				   struct engram_error *err)
{
	enum engram_status status;
	struct checkpoint *c;

	*out = NULL;
	c = calloc(1, sizeof(*c));
	if (!c)
		return no_memory(err);
	c->faults = options->faults;
	status = resolve_dir(c, options->dir, err);
	if (!status)
		status = read_all(c, options, err);
	status = checkpoint_fault(c, status, err);
	if (status) {
		checkpoint_free(c);
		return status;
	}
	*out = c;
	return ENGRAM_OK;
}

void checkpoint_free(struct checkpoint *c)
{
	if (!c)
		return;
	for (uint32_t i = 0; i < c->num_files; i++) {
		free(c->files[i].name);
		free(c->files[i].path);
	}
	for (uint32_t i = 0; i < c->num_layers; i++) {
		free(c->layers[i].files);
		free(c->layers[i].weight.parts);
		free(c->layers[i].scale.parts);
	}
	free(c->files);
	free(c->layers);
	engram_geometry_free(c->geometry);
	free(c->token_map);
	free(c->dir);
	free(c);
}

enum engram_status checkpoint_unchanged(const struct checkpoint *c,
					const struct checkpoint_layer *layer,
					struct engram_error *err)
{
	for (uint32_t i = 0; i < layer->num_files; i++) {
		const struct checkpoint_file *f = &c->files[layer->files[i]];
		enum engram_status status =
			identity_check(f->path, &f->identity, err);

		if (status)
			return status;
	}
	return ENGRAM_OK;
}

enum engram_status checkpoint_spec(const struct checkpoint *c,
				   const struct checkpoint_layer *layer,
				   enum engram_record_layout record_layout,
				   struct engram_segment_spec *spec,
				   struct engram_segment_source **sources,
				   struct engram_error *err)
{
	const struct engram_geometry *g = c->geometry;
	const uint32_t l = layer->geometry_index;

	*sources = calloc(layer->num_files, sizeof(**sources));
	if (!*sources)
		return no_memory(err);
	for (uint32_t i = 0; i < layer->num_files; i++)
		(*sources)[i] = c->files[layer->files[i]].identity;
	*spec = (struct engram_segment_spec){
		.head =
			{
				.layer_id = layer->layer_id,
				.layer_index = l,
				.record_layout = record_layout,
				.dtype = c->dtype,
				.scale_scheme = c->scale_scheme,
				.dim = c->dim,
				.block_size = c->block_size,
				.tensor_scale = layer->tensor_scale,
				.rows = layer->rows,
				.min_ngram = g->min_ngram,
				.max_ngram = g->max_ngram,
				.num_heads = g->num_heads,
				.num_cols = g->num_cols,
				.pad_id = c->pad_id,
				.raw_pad_id = c->raw_pad_id,
				.compressed_vocab_size =
					c->compressed_vocab_size,
				.prime_seed = c->prime_seed,
				.num_cuts = c->num_cuts,
			},
		.primes = g->primes + (size_t)l * g->num_cols,
		.offsets = g->offsets + (size_t)l * g->num_cols,
		.multipliers = g->multipliers + (size_t)l * g->max_ngram,
		.token_map = c->token_map,
		.token_map_len = c->token_map_len,
		.sources = *sources,
		.num_sources = layer->num_files,
	};
	memcpy(spec->head.cut_ids, c->cut_ids, sizeof(c->cut_ids));
	return ENGRAM_OK;
}
