/* SPDX-License-Identifier: Apache-2.0 */
/* A manifest is written by a load into nothing. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "json_write.h"
#include "manifest.h"
#include "views.h"

static enum engram_status no_memory(struct engram_error *err)
{
	return engram_error_set(err, ENGRAM_ENOMEM, "no memory for a manifest");
}

/* ---- making ---- */

static enum engram_status take_files(const struct checkpoint *c,
				     struct manifest *m,
				     struct engram_error *err)
{
	uint32_t i;

	m->files = calloc(c->num_files, sizeof(*m->files));
	if (!m->files)
		return no_memory(err);
	m->num_files = c->num_files;
	for (i = 0; i < c->num_files; i++) {
		const struct engram_segment_source *is = &c->files[i].identity;

		m->files[i] = (struct manifest_file){strdup(c->files[i].name),
						     is->size, is->header_hash};
		if (!m->files[i].name)
			return no_memory(err);
	}
	return ENGRAM_OK;
}

/* Rows and checksums of one layer, which are still to be taken. */
static enum engram_status plan_layer(const struct checkpoint *c, uint32_t i,
				     struct engram_segment_header *h,
				     struct manifest_layer *layer,
				     struct engram_error *err)
{
	struct engram_segment_source *sources;
	struct engram_segment_spec spec;
	enum engram_status status;

	status = checkpoint_spec(c, &c->layers[i], ENGRAM_PACKED, &spec,
				 &sources, err);
	if (status)
		return status;
	spec.instance = spec.table = "manifest";
	spec.generation = 1;
	status = engram_segment_plan_header(&spec, h, err);
	free(sources);
	if (status)
		return status;
	*layer = (struct manifest_layer){
		.layer_id = h->layer_id,
		.rows = h->rows,
		.record_bytes = engram_segment_record_bytes(h),
		.chunk_rows = h->chunk_rows,
		.num_chunks = h->checksums.count,
	};
	layer->checksums = calloc(layer->num_chunks + 1, sizeof(uint64_t));
	return layer->checksums ? ENGRAM_OK : no_memory(err);
}

static enum engram_status plan_layers(const struct checkpoint *c,
				      const struct manifest *known,
				      struct manifest *m,
				      struct engram_segment_header *headers,
				      struct loader_layer *layers,
				      struct loader_progress *progress,
				      struct engram_error *err)
{
	enum engram_status status = ENGRAM_OK;
	uint64_t bytes;
	uint32_t i;

	for (i = 0; i < c->num_layers && !status; i++) {
		struct manifest_layer *layer = &m->layers[i];

		status = plan_layer(c, i, &headers[i], layer, err);
		layers[i] =
			(struct loader_layer){.layer = &c->layers[i],
					      .header = &headers[i],
					      .checksums = layer->checksums};
		if (!status && known)
			status = manifest_find(known, &headers[i],
					       &layers[i].known, err);
		bytes = layer->rows * layer->record_bytes;
		atomic_store(&progress->layers[i].layer_id, layer->layer_id);
		atomic_store(&progress->layers[i].bytes_total, bytes);
		atomic_fetch_add(&progress->bytes_total, bytes);
	}
	atomic_store(&progress->num_layers, c->num_layers);
	return status;
}

enum engram_status manifest_make(const struct checkpoint *c,
				 const struct loader_options *options,
				 const struct manifest *known,
				 struct loader_progress *progress,
				 struct manifest *out, struct engram_error *err)
{
	struct engram_segment_header *headers =
		calloc(c->num_layers, sizeof(*headers));
	struct loader_layer layers[ENGRAM_LAYERS_MAX];
	struct loader_report report;
	enum engram_status status;

	*out = (struct manifest){.num_layers = c->num_layers};
	out->layers = calloc(c->num_layers, sizeof(*out->layers));
	status = headers && out->layers ? take_files(c, out, err)
					: no_memory(err);
	if (!status)
		status = plan_layers(c, known, out, headers, layers, progress,
				     err);
	if (!status)
		status = loader_fill(c, layers, c->num_layers, options,
				     progress, &report, err);
	if (status)
		manifest_free(out);
	free(headers);
	return status;
}

/* ---- writing ---- */

static json_t *files_json(const struct manifest *m)
{
	json_t *list = json_array();
	size_t i;

	for (i = 0; list && i < m->num_files; i++)
		if (json_array_append_new(
			    list,
			    json_pack("{s:o, s:I, s:o}", "name",
				      view_text(m->files[i].name), "size",
				      (json_int_t)m->files[i].size,
				      "header_hash",
				      view_hex(&m->files[i].header_hash, 1)))) {
			json_decref(list);
			return NULL;
		}
	return list;
}

static json_t *checksums_json(const struct manifest_layer *layer)
{
	json_t *list = json_array();
	uint64_t i;

	for (i = 0; list && i < layer->num_chunks; i++)
		if (json_array_append_new(list,
					  view_hex(&layer->checksums[i], 1))) {
			json_decref(list);
			return NULL;
		}
	return list;
}

static json_t *layers_json(const struct manifest *m)
{
	json_t *list = json_array();
	size_t i;

	for (i = 0; list && i < m->num_layers; i++) {
		const struct manifest_layer *layer = &m->layers[i];

		if (json_array_append_new(
			    list,
			    json_pack("{s:i, s:I, s:I, s:I, s:o}", "layer_id",
				      (int)layer->layer_id, "rows",
				      (json_int_t)layer->rows, "record_bytes",
				      (json_int_t)layer->record_bytes,
				      "chunk_rows",
				      (json_int_t)layer->chunk_rows,
				      "checksums", checksums_json(layer)))) {
			json_decref(list);
			return NULL;
		}
	}
	return list;
}

static enum engram_status write_failed(const char *path, int sys_errno,
				       struct engram_error *err)
{
	enum engram_status status =
		engram_error_sys(err, sys_errno, "write %s", path);

	engram_error_fix(err, "check that there is room in the checkpoint's "
			      "directory and that you may write there");
	engram_error_path(err, "%s", path);
	return status;
}

/* Under another name first. */
static enum engram_status put(const json_t *all, const char *path,
			      const char *temporary, struct engram_error *err)
{
	FILE *f = fopen(temporary, "we");
	int sys_errno = 0;

	if (!f)
		return write_failed(temporary, errno, err);
	errno = ENOMEM; /* unless it is something else */
	if (!json_write(all, f) || fflush(f) || fsync(fileno(f)))
		sys_errno = errno;
	if (fclose(f) && !sys_errno)
		sys_errno = errno;
	if (!sys_errno && rename(temporary, path))
		sys_errno = errno;
	if (!sys_errno)
		return ENGRAM_OK;
	unlink(temporary);
	return write_failed(path, sys_errno, err);
}

enum engram_status manifest_write(const struct manifest *m, const char *dir,
				  struct engram_error *err)
{
	char *path = NULL, *temporary = NULL;
	enum engram_status status;
	json_t *all = json_pack("{s:s, s:i, s:s, s:o, s:o}", "format",
				"engram-manifest", "version", 1, "written_by",
				"engramd " ENGRAM_VERSION_STRING, "files",
				files_json(m), "layers", layers_json(m));

	if (!all || asprintf(&path, "%s/" MANIFEST_NAME, dir) < 0 ||
	    asprintf(&temporary, "%s.tmp", path) < 0)
		status = no_memory(err);
	else
		status = put(all, path, temporary, err);
	json_decref(all);
	free(temporary);
	free(path);
	return status;
}
