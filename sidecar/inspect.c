/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "inspect.h"
#include "json_write.h"
#include "safetensors.h"
#include "spec.h"
#include "views.h"

#define INSPECT_FORMAT 1 /* raised when a member goes or changes */

/* ---- objects ---- */

void inspect_begin(struct inspect_object *o)
{
	o->json = json_object();
	o->failed = !o->json;
}

void inspect_put(struct inspect_object *o, const char *key, json_t *value)
{
	if (json_object_set_new(o->json, key, value))
		o->failed = true;
}

void inspect_put_u64(struct inspect_object *o, const char *key, uint64_t value)
{
	inspect_put(o, key, json_integer((json_int_t)value));
}

void inspect_put_room(struct inspect_object *o, const char *key, uint64_t value)
{
	inspect_put(o, key,
		    value == UINT64_MAX ? json_null()
					: json_integer((json_int_t)value));
}

void inspect_put_error(struct inspect_object *o, const struct engram_error *err)
{
	inspect_put(o, "name", json_string(engram_status_name(err->status)));
	inspect_put(o, "message", view_text(err->message));
	if (err->fix[0])
		inspect_put(o, "fix", view_text(err->fix));
	if (err->path[0])
		inspect_put(o, "path", view_text(err->path));
	if (err->needed || err->available) {
		inspect_put_u64(o, "needed", err->needed);
		inspect_put_u64(o, "available", err->available);
	}
}

json_t *inspect_end(struct inspect_object *o)
{
	if (!o->failed)
		return o->json;
	json_decref(o->json);
	return NULL;
}

static bool append(json_t *list, json_t *value)
{
	return json_array_append_new(list, value) == 0;
}

/* The list, or NULL when something could not be put into it. */
static json_t *list_end(json_t *list, bool good)
{
	if (good)
		return list;
	json_decref(list);
	return NULL;
}

/* ---- geometry ---- */

static const char *dtype_name(uint32_t dtype)
{
	return dtype == ENGRAM_BF16 ? "bf16" : "fp8_e4m3";
}

static const char *scale_name(uint32_t scheme)
{
	switch (scheme) {
	case ENGRAM_SCALE_NONE:
		return "none";
	case ENGRAM_SCALE_TENSOR:
		return "tensor";
	default:
		return "ue8m0";
	}
}

static json_t *cut_ids(const struct checkpoint *c)
{
	json_t *list = json_array();
	bool good = true;

	for (uint32_t i = 0; i < c->num_cuts; i++)
		good = append(list, json_integer(c->cut_ids[i])) && good;
	return list_end(list, good);
}

static json_t *geometry(const struct checkpoint *c)
{
	const struct engram_geometry *g = c->geometry;
	struct inspect_object o;

	if (!g)
		return json_null();
	inspect_begin(&o);
	inspect_put_u64(&o, "min_ngram", g->min_ngram);
	inspect_put_u64(&o, "max_ngram", g->max_ngram);
	inspect_put_u64(&o, "heads", g->num_heads);
	inspect_put_u64(&o, "columns", g->num_cols);
	inspect_put_u64(&o, "dim", c->dim);
	inspect_put(&o, "dtype", json_string(dtype_name(c->dtype)));
	inspect_put(&o, "scale", json_string(scale_name(c->scale_scheme)));
	inspect_put_u64(&o, "block_size", c->block_size);
	inspect_put_u64(&o, "engram_vocab_size", c->prime_seed);
	inspect_put_u64(&o, "compressed_vocab_size", c->compressed_vocab_size);
	inspect_put_u64(&o, "vocab_size", c->vocab_size);
	inspect_put_u64(&o, "raw_pad_id", c->raw_pad_id);
	inspect_put(&o, "pad_id",
		    c->pad_id < 0 ? json_null() : json_integer(c->pad_id));
	inspect_put(&o, "cut_ids", cut_ids(c));
	return inspect_end(&o);
}

/* Where the map came from: "given", the file that was looked for, or "raw":
 * there need not be one. */
static json_t *token_map(const struct checkpoint *c, const char *given)
{
	static const char *const names[] = {"engram_token_map.json",
					    "tokenizer.json"};
	const char *source = given ? "given" : "none", *file = given;
	struct inspect_object o;
	uint32_t i;
	size_t k;

	for (k = 0; !file && k < 2; k++)
		for (i = 0; i < c->num_files; i++)
			if (!file && !strcmp(c->files[i].name, names[k]))
				source = file = names[k];
	if (!file && c->token_map_len)
		source = "raw";
	inspect_begin(&o);
	inspect_put(&o, "source", view_text(source));
	inspect_put(&o, "file", file ? view_text(file) : json_null());
	inspect_put_u64(&o, "entries", c->token_map_len);
	return inspect_end(&o);
}

/* ---- tensors and files ---- */

/* As the file describes it: found again by its place, which is its own. */
static json_t *tensor(const struct checkpoint *c,
		      const struct checkpoint_tensor *t)
{
	const struct safetensors_tensor *found = NULL;
	struct safetensors header;
	struct inspect_object o;
	json_t *shape;
	bool good = true;
	size_t i;

	if (!t->bytes ||
	    safetensors_read(c->files[t->file].path, &header, NULL))
		return json_null();
	for (i = 0; i < header.num_tensors; i++)
		if (header.tensors[i].offset == t->offset &&
		    header.tensors[i].bytes)
			found = &header.tensors[i];
	if (!found) {
		safetensors_free(&header);
		return json_null();
	}
	inspect_begin(&o);
	inspect_put(&o, "name", view_text(found->name));
	inspect_put(&o, "dtype", view_text(found->dtype));
	shape = json_array();
	for (i = 0; i < found->rank; i++)
		good = append(shape,
			      json_integer((json_int_t)found->shape[i])) &&
		       good;
	inspect_put(&o, "shape", list_end(shape, good));
	inspect_put(&o, "file", view_text(c->files[t->file].name));
	inspect_put_u64(&o, "offset", found->offset);
	inspect_put_u64(&o, "bytes", found->bytes);
	if (t->num_parts)
		inspect_put_u64(&o, "parts", t->num_parts);
	safetensors_free(&header);
	return inspect_end(&o);
}

static json_t *numbers(const int64_t *from, uint32_t count)
{
	json_t *list = json_array();
	bool good = true;
	uint32_t i;

	for (i = 0; i < count; i++)
		good = append(list, json_integer(from[i])) && good;
	return list_end(list, good);
}

static json_t *layers(const struct checkpoint *c)
{
	json_t *list = json_array();
	struct inspect_object o;
	bool good = true;
	uint32_t i;

	for (i = 0; c->geometry && i < c->num_layers; i++) {
		const struct engram_geometry *g = c->geometry;
		const struct checkpoint_layer *l = &c->layers[i];
		const size_t at = l->geometry_index;

		inspect_begin(&o);
		inspect_put(&o, "layer_id", json_integer(l->layer_id));
		inspect_put_u64(&o, "rows", l->rows);
		inspect_put(&o, "primes",
			    numbers(g->primes + at * g->num_cols, g->num_cols));
		inspect_put(&o, "multipliers",
			    numbers(g->multipliers + at * g->max_ngram,
				    g->max_ngram));
		inspect_put(&o, "weight", tensor(c, &l->weight));
		inspect_put(&o, "scale", tensor(c, &l->scale));
		good = append(list, inspect_end(&o)) && good;
	}
	return list_end(list, good);
}

/* What failed when it was read is opened again for the next tensor. */
static bool seen_before(const struct checkpoint *c, uint32_t file)
{
	uint32_t i;

	for (i = 0; i < file; i++)
		if (!strcmp(c->files[i].name, c->files[file].name))
			return true;
	return false;
}

static json_t *files(const struct checkpoint *c)
{
	json_t *list = json_array();
	struct inspect_object o;
	bool good = true;
	uint32_t i;

	for (i = 0; i < c->num_files; i++) {
		if (seen_before(c, i))
			continue;
		inspect_begin(&o);
		inspect_put(&o, "name", view_text(c->files[i].name));
		inspect_put_u64(&o, "bytes", c->files[i].identity.size);
		good = append(list, inspect_end(&o)) && good;
	}
	return list_end(list, good);
}

static json_t *disk(const struct checkpoint *c)
{
	uint64_t all = 0, used = 0;
	struct inspect_object o;
	uint32_t i;

	for (i = 0; i < c->num_files; i++)
		if (!seen_before(c, i))
			all += c->files[i].identity.size;
	for (i = 0; i < c->num_layers; i++)
		used += c->layers[i].weight.bytes + c->layers[i].scale.bytes;
	inspect_begin(&o);
	inspect_put_u64(&o, "files_bytes", all);
	inspect_put_u64(&o, "tensors_bytes", used);
	return inspect_end(&o);
}

/* ---- all of it ---- */

static json_t *problems(const struct checkpoint_faults *faults)
{
	json_t *list = json_array();
	struct inspect_object o;
	bool good = true;
	size_t i;

	for (i = 0; i < faults->count; i++) {
		inspect_begin(&o);
		inspect_put_error(&o, &faults->list[i]);
		good = append(list, inspect_end(&o)) && good;
	}
	return list_end(list, good);
}

static json_t *describe(const struct inspect_options *options,
			const struct checkpoint *c,
			struct checkpoint_faults *faults)
{
	const enum engram_record_layout layout =
		options->table ? options->table->layout : ENGRAM_PACKED;
	struct engram_error err;
	struct inspect_object o;
	json_t *memory, *other, *ranks;

	engram_error_clear(&err);
	memory = inspect_memory(c, layout, &err);
	if (err.status && checkpoint_faults_add(faults, &err)) {
		json_decref(memory);
		return NULL;
	}
	other = inspect_memory(
		c, layout == ENGRAM_PACKED ? ENGRAM_SPLIT : ENGRAM_PACKED,
		&err);
	ranks = inspect_ranks(c, options->tp_size, faults);
	inspect_begin(&o);
	inspect_put_u64(&o, "format", INSPECT_FORMAT);
	inspect_put(&o, "checkpoint", view_text(c->dir));
	inspect_put(&o, "loadable", json_boolean(!faults->count));
	inspect_put(&o, "geometry", geometry(c));
	inspect_put(&o, "token_map", token_map(c, options->token_map));
	inspect_put(&o, "layers", layers(c));
	inspect_put(&o, "files", files(c));
	inspect_put(&o, "disk", disk(c));
	inspect_put(&o, "memory", memory);
	inspect_put(&o, "memory_other_layout", other);
	inspect_put(&o, "room", inspect_room());
	inspect_put(&o, "ranks", ranks);
	inspect_put(&o, "problems", problems(faults));
	return inspect_end(&o);
}

static int no_memory(void)
{
	fputs("engramd: no memory to inspect a checkpoint\n", stderr);
	return EXIT_FAILURE;
}

static int print(const struct inspect_options *options,
		 const struct checkpoint *c, struct checkpoint_faults *faults)
{
	json_t *all = describe(options, c, faults);
	bool good = all;

	if (good && options->json)
		good = json_write(all, stdout);
	else if (good)
		inspect_text(all);
	json_decref(all);
	if (!good)
		return no_memory();
	if (fflush(stdout) || ferror(stdout)) {
		fputs("engramd: stdout: write failed\n", stderr);
		return EXIT_FAILURE;
	}
	return faults->count ? EXIT_FAILURE : EXIT_SUCCESS;
}

int inspect_run(const struct inspect_options *options)
{
	struct checkpoint_faults faults = {0};
	struct inspect_options given = *options;
	struct checkpoint_options open = {0};
	struct checkpoint *c;
	struct engram_error err;
	int code;

	if (options->table)
		open = table_checkpoint_options(options->table);
	open.faults = &faults;
	if (options->dir)
		open.dir = options->dir;
	if (options->token_map)
		open.token_map_file = options->token_map;
	given.token_map = open.token_map_file;
	if (checkpoint_open(&open, &c, &err))
		code = no_memory();
	else
		code = print(&given, c, &faults);
	checkpoint_free(c);
	checkpoint_faults_free(&faults);
	return code;
}
