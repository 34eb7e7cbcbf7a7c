/* SPDX-License-Identifier: Apache-2.0 */
#include "manifest.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "json.h"

#define FORMAT_NAME   "engram-manifest"
#define BYTES_MAX     (256u << 20)
#define FILES_MAX     65536u
#define CHUNKS_MAX    (UINT64_C(1) << 24)
#define WRITE_IT_ANEW "engramctl manifest write DIR"

void manifest_free(struct manifest *m)
{
	size_t i;

	for (i = 0; m->files && i < m->num_files; i++)
		free(m->files[i].name);
	for (i = 0; m->layers && i < m->num_layers; i++)
		free(m->layers[i].checksums);
	free(m->files);
	free(m->layers);
	*m = (struct manifest){0};
}

/* ---- reading ---- */

static void no_memory(struct json_view *v)
{
	if (v->failed)
		return;
	v->failed = true;
	v->status = engram_error_set(v->err, ENGRAM_ENOMEM,
				     "no memory for a manifest");
}

static bool parse_hex(const char *text, uint64_t *out)
{
	char *end;

	*out = 0;
	if (!text || strlen(text) != 16 ||
	    strspn(text, "0123456789abcdef") != 16)
		return false;
	*out = strtoull(text, &end, 16);
	return true;
}

static uint64_t read_hash(struct json_view *v, const char *key)
{
	uint64_t hash = 0;

	json_view_require(v, key, "16 hex digits");
	if (!parse_hex(json_view_string(v, key, ""), &hash))
		json_view_fail(v, key, "must be 16 hex digits");
	return hash;
}

static uint64_t read_count(struct json_view *v, const char *key)
{
	json_view_require(v, key, "a number");
	return (uint64_t)json_view_int(v, key, 1, INT64_MAX, 1);
}

/* The object at `key`[i] of `top`. */
static void begin(struct json_view *top, struct json_view *v, const char *key,
		  size_t i, json_t *object)
{
	char path[sizeof(v->path)];

	snprintf(path, sizeof(path), "%s[%zu]", key, i);
	json_view_begin(v, object, path, top->src, top->status, top->err);
}

static void end(struct json_view *top, const struct json_view *v)
{
	if (!json_view_result(v) || top->failed)
		return;
	top->failed = true;
	top->status = v->status;
}

/* The list at `key`, and room for an element of `size` for each item; NULL on a
 * fault. */
static void *make_list(struct json_view *v, const char *key, size_t most,
		       size_t size, json_t **array)
{
	void *list;

	json_view_require(v, key, "a list");
	*array = json_view_array(v, key, 1, most);
	if (!*array)
		return NULL;
	list = calloc(json_array_size(*array), size);
	if (!list)
		no_memory(v);
	return list;
}

static void read_files(struct json_view *top, struct manifest *m)
{
	json_t *array, *object;
	struct json_view v;
	size_t i;

	m->files =
		make_list(top, "files", FILES_MAX, sizeof(*m->files), &array);
	if (!m->files)
		return;
	m->num_files = json_array_size(array);
	json_array_foreach(array, i, object)
	{
		struct manifest_file *file = &m->files[i];

		begin(top, &v, "files", i, object);
		json_view_require(&v, "name", "relative to the directory");
		file->name = strdup(json_view_string(&v, "name", ""));
		file->size =
			(uint64_t)json_view_int(&v, "size", 0, INT64_MAX, 0);
		file->header_hash = read_hash(&v, "header_hash");
		if (!file->name)
			no_memory(&v);
		end(top, &v);
	}
}

static void read_checksums(struct json_view *v, struct manifest_layer *layer)
{
	json_t *array, *item;
	size_t i;

	layer->checksums = make_list(v, "checksums", CHUNKS_MAX,
				     sizeof(*layer->checksums), &array);
	if (!layer->checksums)
		return;
	layer->num_chunks = json_array_size(array);
	json_array_foreach(array, i, item)
	{
		if (!parse_hex(json_string_value(item), &layer->checksums[i]))
			json_view_fail(v, "checksums",
				       "item %zu must be 16 hex digits", i);
	}
	if ((layer->rows + layer->chunk_rows - 1) / layer->chunk_rows !=
	    layer->num_chunks)
		json_view_fail(v, "checksums",
			       "there are %" PRIu64 " for %" PRIu64
			       " rows in pieces of %" PRIu64,
			       layer->num_chunks, layer->rows,
			       layer->chunk_rows);
}

static void read_layers(struct json_view *top, struct manifest *m)
{
	json_t *array, *object;
	struct json_view v;
	size_t i;

	m->layers = make_list(top, "layers", ENGRAM_LAYERS_MAX,
			      sizeof(*m->layers), &array);
	if (!m->layers)
		return;
	m->num_layers = json_array_size(array);
	json_array_foreach(array, i, object)
	{
		struct manifest_layer *layer = &m->layers[i];

		begin(top, &v, "layers", i, object);
		json_view_require(&v, "layer_id", "a number");
		layer->layer_id =
			(int32_t)json_view_int(&v, "layer_id", 0, INT32_MAX, 0);
		layer->rows = read_count(&v, "rows");
		layer->record_bytes = read_count(&v, "record_bytes");
		layer->chunk_rows = read_count(&v, "chunk_rows");
		read_checksums(&v, layer);
		end(top, &v);
	}
}

static enum engram_status read_all(const struct json_source *src,
				   struct manifest *m, struct engram_error *err)
{
	struct json_view v;

	json_view_begin(&v, src->root, "", src, ENGRAM_ECHECKPOINT, err);
	json_view_require(&v, "format", "\"" FORMAT_NAME "\"");
	if (strcmp(json_view_string(&v, "format", FORMAT_NAME), FORMAT_NAME))
		json_view_fail(&v, "format", "must be \"" FORMAT_NAME "\"");
	json_view_require(&v, "version", "1");
	if (json_view_int(&v, "version", 1, INT64_MAX, 1) != 1)
		json_view_fail(&v, "version", "only 1 is known here");
	read_files(&v, m);
	read_layers(&v, m);
	/* A later one may say more. */
	return json_view_result(&v);
}

enum engram_status manifest_read(const char *dir, struct manifest *out,
				 struct engram_error *err)
{
	struct json_source src = {0};
	enum engram_status status;
	char *path;

	*out = (struct manifest){0};
	if (asprintf(&path, "%s/" MANIFEST_NAME, dir) < 0)
		return engram_error_set(err, ENGRAM_ENOMEM,
					"no memory for a manifest");
	status = json_source_read(&src, path, BYTES_MAX, ENGRAM_ECHECKPOINT,
				  err);
	if (!status)
		status = read_all(&src, out, err);
	if (status) {
		manifest_free(out);
		engram_error_path(err, "%s", path);
		if (status == ENGRAM_ENOTFOUND)
			engram_error_fix(err, "write one (" WRITE_IT_ANEW
					      "), or set \"manifest\" to "
					      "\"auto\"");
		else
			engram_error_fix(err, "write it anew (" WRITE_IT_ANEW
					      "), or remove it");
	}
	json_source_free(&src);
	free(path);
	return status;
}

/* ---- comparing ---- */

static void is_another(struct engram_error *err)
{
	err->status = ENGRAM_ESOURCECHANGED;
	engram_error_fix(
		err, "download the checkpoint again; if it was changed on "
		     "purpose, write the manifest anew (" WRITE_IT_ANEW ")");
}

static const struct manifest_file *find_file(const struct manifest *m,
					     const char *name)
{
	size_t i;

	for (i = 0; i < m->num_files; i++)
		if (!strcmp(m->files[i].name, name))
			return &m->files[i];
	return NULL;
}

enum engram_status manifest_check_files(const struct manifest *m,
					const struct checkpoint *c,
					struct engram_error *err)
{
	struct engram_error here;
	uint32_t i;

	for (i = 0; i < c->num_files; i++) {
		const struct engram_segment_source *is = &c->files[i].identity;
		const struct manifest_file *was =
			find_file(m, c->files[i].name);

		if (was && was->size == is->size &&
		    was->header_hash == is->header_hash)
			continue;
		if (!was)
			engram_error_set(&here, ENGRAM_ESOURCECHANGED,
					 "%s is not in " MANIFEST_NAME,
					 c->files[i].path);
		else if (was->size != is->size)
			engram_error_set(&here, ENGRAM_ESOURCECHANGED,
					 "%s has %" PRIu64
					 " bytes, and by " MANIFEST_NAME
					 " %" PRIu64,
					 c->files[i].path, is->size, was->size);
		else
			engram_error_set(&here, ENGRAM_ESOURCECHANGED,
					 "%s has another header than when "
					 "" MANIFEST_NAME " was written",
					 c->files[i].path);
		is_another(&here);
		engram_error_path(&here, "%s", c->files[i].path);
		if (was && was->size != is->size)
			engram_error_figures(&here, was->size, is->size);
		if (err)
			*err = here;
		return ENGRAM_ESOURCECHANGED;
	}
	return ENGRAM_OK;
}

enum engram_status manifest_find(const struct manifest *m,
				 const struct engram_segment_header *h,
				 const uint64_t **checksums,
				 struct engram_error *err)
{
	const uint64_t record = engram_segment_record_bytes(h);
	size_t i;

	for (i = 0; i < m->num_layers; i++)
		if (m->layers[i].layer_id == h->layer_id)
			break;
	if (i == m->num_layers)
		engram_error_set(err, ENGRAM_ESOURCECHANGED,
				 "layer %" PRId32 " is not in " MANIFEST_NAME,
				 h->layer_id);
	else if (m->layers[i].rows != h->rows ||
		 m->layers[i].record_bytes != record ||
		 m->layers[i].chunk_rows != h->chunk_rows)
		engram_error_set(err, ENGRAM_ESOURCECHANGED,
				 "layer %" PRId32 " has %" PRIu64
				 " rows of %" PRIu64
				 " bytes, and by " MANIFEST_NAME " %" PRIu64
				 " of %" PRIu64,
				 h->layer_id, h->rows, record,
				 m->layers[i].rows, m->layers[i].record_bytes);
	else {
		*checksums = m->layers[i].checksums;
		return ENGRAM_OK;
	}
	engram_error_fix(err, "write it anew as the table describes the "
			      "checkpoint (engramctl manifest write --config "
			      "FILE --table NAME)");
	return ENGRAM_ESOURCECHANGED;
}

enum engram_status manifest_compare(const struct manifest *m,
				    const struct engram_segment_header *h,
				    struct engram_error *err)
{
	const uint64_t *is = engram_segment_at(h, &h->checksums), *was;
	enum engram_status status = manifest_find(m, h, &was, err);
	uint64_t i;

	for (i = 0; !status && i < h->checksums.count; i++) {
		if (is[i] == was[i])
			continue;
		engram_error_set(err, ENGRAM_ESOURCECHANGED,
				 "layer %" PRId32 ": rows from %" PRIu64
				 " on are not those of " MANIFEST_NAME
				 ": checksum %016" PRIx64 ", not %016" PRIx64,
				 h->layer_id, i * h->chunk_rows, is[i], was[i]);
		engram_error_fix(err, "the checkpoint was changed since the "
				      "table was loaded: load it again");
		status = ENGRAM_ESOURCECHANGED;
	}
	return status;
}
