/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint_faults.h"
#include "checkpoint_names.h"
#include "checkpoint_tensors.h"

static const char *const default_weights[] = {
	"layers.{layer}.engram.embed.weight",
	"model.layers.{layer}.engram.embed.weight",
	"layers.{layer}.engram.embed_tokens.weight",
	"model.layers.{layer}.engram.embed_tokens.weight", NULL};
static const char *const default_scales[] = {
	"layers.{layer}.engram.embed.scale",
	"model.layers.{layer}.engram.embed.scale",
	"layers.{layer}.engram.embed_tokens.weight_scale_inv",
	"model.layers.{layer}.engram.embed_tokens.weight_scale_inv", NULL};

/* A fault of a tensor's shape or dtype, with what to do about it. */
static enum engram_status misfit(const struct checkpoint *c,
				 const struct checkpoint_found *f,
				 enum engram_status status, uint64_t needed,
				 uint64_t available, struct engram_error *err,
				 const char *fmt, ...) ENGRAM_PRINTF(7, 8);

static enum engram_status misfit(const struct checkpoint *c,
				 const struct checkpoint_found *f,
				 enum engram_status status, uint64_t needed,
				 uint64_t available, struct engram_error *err,
				 const char *fmt, ...)
{
	char text[256];
	va_list args;

	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	engram_error_set(err, status, "%s: tensor \"%s\": %s",
			 c->files[f->file].path, f->name, text);
	engram_error_path(err, "%s", c->files[f->file].path);
	engram_error_figures(err, needed, available);
	engram_error_fix(err, "config.json and the weights belong to "
			      "different models: download both again, or "
			      "describe them in the table's \"rows\" and "
			      "\"hash\"");
	return status;
}

static bool is_one_of(const char *dtype, const char *const *names)
{
	for (; *names; names++)
		if (!strcmp(dtype, *names))
			return true;
	return false;
}

/* Rows that the tensors have: those of the hash, filled up. */
static uint64_t stored_rows(const struct checkpoint *c, uint64_t rows)
{
	const uint64_t over = rows % c->row_multiple;

	return over ? rows + c->row_multiple - over : rows;
}

/* What a tensor must be like. */
struct form {
	const char *const *dtypes; /* the expected one, what may stand for it */
	uint64_t rows;		   /* that the hash needs */
	uint64_t width;
};

static enum engram_status check_form(const struct checkpoint *c,
				     const struct checkpoint_found *f,
				     const struct form *form,
				     struct engram_error *err)
{
	const struct safetensors_tensor *t = f->tensor;

	if (!is_one_of(t->dtype, form->dtypes))
		return misfit(c, f, ENGRAM_ECHECKPOINT, 0, 0, err,
			      "dtype %s, must be %s%s", t->dtype,
			      form->dtypes[0], form->dtypes[1] ? " or U8" : "");
	if (t->rank != 2)
		return misfit(c, f, ENGRAM_ECHECKPOINT, 2, t->rank, err,
			      "%" PRIu32 " dimensions, must be 2", t->rank);
	if (t->shape[1] != form->width)
		return misfit(c, f, ENGRAM_ECHECKPOINT, form->width,
			      t->shape[1], err,
			      "rows of %" PRIu64 " elements, must be %" PRIu64,
			      t->shape[1], form->width);
	return ENGRAM_OK;
}

static enum engram_status check_rows(const struct checkpoint *c,
				     const struct checkpoint_found *f,
				     const struct form *form, uint64_t have,
				     uint32_t parts, struct engram_error *err)
{
	const uint64_t stored = stored_rows(c, form->rows);
	char in[40] = "", filled[48] = "";

	if (have == stored)
		return ENGRAM_OK;
	if (parts)
		snprintf(in, sizeof(in), " in %" PRIu32 " part%s", parts,
			 parts == 1 ? "" : "s");
	if (stored != form->rows)
		snprintf(filled, sizeof(filled), ", filled up to %" PRIu64,
			 stored);
	return misfit(c, f, ENGRAM_EGEOMETRY, stored, have, err,
		      "%" PRIu64 " rows%s, the hash needs %" PRIu64 "%s", have,
		      in, form->rows, filled);
}

/* The rows that the hash needs; there may be more behind them. */
static void cut(struct checkpoint_tensor *t, uint64_t rows)
{
	uint64_t left = rows;
	uint32_t n = 0;

	if (!t->num_parts || !t->shape[0])
		return; /* never: the hash needs some */
	for (; left && n < t->num_parts; n++) {
		if (t->parts[n].rows > left)
			t->parts[n].rows = left;
		left -= t->parts[n].rows;
	}
	t->num_parts = n;
	t->bytes = t->bytes / t->shape[0] * rows;
	t->shape[0] = rows;
	t->file = t->parts[0].file;
	t->offset = t->parts[0].offset;
	if (n > 1)
		return;
	free(t->parts);
	t->parts = NULL;
	t->num_parts = 0;
}

static enum engram_status add_part(struct checkpoint_tensor *t,
				   const struct checkpoint_found *f,
				   struct engram_error *err)
{
	struct checkpoint_part *more;

	if (!f->tensor->shape[0])
		return ENGRAM_OK;
	more = realloc(t->parts, (t->num_parts + 1) * sizeof(*more));
	if (!more)
		return engram_error_set(err, ENGRAM_ENOMEM,
					"no memory to read a checkpoint");
	t->parts = more;
	more[t->num_parts++] = (struct checkpoint_part){
		.file = f->file,
		.offset = f->tensor->offset,
		.rows = f->tensor->shape[0],
	};
	t->bytes += f->tensor->bytes;
	t->shape[0] += f->tensor->shape[0];
	return ENGRAM_OK;
}

/* `next` is the name of the part that is not there. */
static enum engram_status too_few(const struct checkpoint *c,
				  const struct checkpoint_found *next,
				  const struct form *form, uint64_t have,
				  uint32_t parts, struct engram_error *err)
{
	const uint64_t stored = stored_rows(c, form->rows);

	engram_error_set(err, ENGRAM_EGEOMETRY,
			 "%s: %" PRIu64 " rows in %" PRIu32
			 " parts, the hash needs %" PRIu64 "; no \"%s\"",
			 c->dir, have, parts, stored, next->name);
	engram_error_path(err, "%s", c->dir);
	engram_error_figures(err, stored, have);
	engram_error_fix(err, "download the missing file, or describe the "
			      "table in its \"rows\" and \"hash\"");
	return ENGRAM_EGEOMETRY;
}

/* All parts, of which `first` is found; without "{part}" that is all. */
static enum engram_status take(struct checkpoint *c,
			       struct checkpoint_shards *shards,
			       const struct checkpoint_layer *layer,
			       const struct checkpoint_found *first,
			       const struct form *form,
			       struct checkpoint_tensor *out,
			       struct engram_error *err)
{
	struct checkpoint_tensor t = {.dtype = c->dtype,
				      .shape = {0, form->width}};
	const bool several = checkpoint_names_part(first->pattern);
	struct checkpoint_found f = *first;
	enum engram_status status = ENGRAM_OK;
	uint32_t found = 0;

	while (!status && f.tensor) {
		status = check_form(c, &f, form, err);
		if (!status)
			status = add_part(&t, &f, err);
		f.tensor = NULL;
		found++;
		if (!status && several)
			status = checkpoint_names_next(
				c, shards, layer->layer_id, found, &f, err);
	}
	if (!status && several && t.shape[0] < stored_rows(c, form->rows))
		status = too_few(c, &f, form, t.shape[0], found, err);
	else if (!status)
		status = check_rows(c, first, form, t.shape[0],
				    several ? found : 0, err);
	if (status) {
		free(t.parts);
		return status;
	}
	cut(&t, form->rows);
	*out = t;
	return ENGRAM_OK;
}

static enum engram_status find_weight(struct checkpoint *c,
				      struct checkpoint_shards *shards,
				      const char *const *patterns,
				      struct checkpoint_layer *layer,
				      struct engram_error *err)
{
	static const char *const fp8[] = {"F8_E4M3", "U8", NULL};
	static const char *const bf16[] = {"BF16", NULL};
	const struct form form = {c->dtype == ENGRAM_BF16 ? bf16 : fp8,
				  layer->rows, c->dim};
	enum engram_status status;
	struct checkpoint_found found;

	status = checkpoint_names_find(c, shards, layer->layer_id, "weight",
				       patterns, &found, err);
	if (status)
		return status;
	if (!found.tensor)
		return checkpoint_names_missing(c, layer->layer_id, "weight",
						patterns, err);
	return take(c, shards, layer, &found, &form, &layer->weight, err);
}

/* A scale that nothing would be done with: the rows are not what the
 * configuration says. */
static enum engram_status not_wanted(const struct checkpoint *c,
				     const struct checkpoint_found *f,
				     bool given, struct engram_error *err)
{
	engram_error_set(err, ENGRAM_ECHECKPOINT,
			 "%s: tensor \"%s\": a scale, but %s",
			 c->files[f->file].path, f->name,
			 given ? "\"rows\" has a tensor_scale"
			       : "\"rows\" has the scale \"none\"");
	engram_error_path(err, "%s", c->files[f->file].path);
	engram_error_fix(err, given ? "remove rows.tensor_scale"
				    : "set rows.scale to \"tensor\" or "
				      "\"ue8m0\"");
	return ENGRAM_ECHECKPOINT;
}

static enum engram_status read_factor(const struct checkpoint *c,
				      const struct checkpoint_found *f,
				      float *out, struct engram_error *err)
{
	const struct safetensors_tensor *t = f->tensor;
	enum engram_status status;

	if (strcmp(t->dtype, "F32") && strcmp(t->dtype, "BF16"))
		return misfit(c, f, ENGRAM_ECHECKPOINT, 0, 0, err,
			      "dtype %s, must be F32 or BF16", t->dtype);
	for (uint32_t i = 0; i < t->rank; i++)
		if (t->shape[i] != 1)
			return misfit(c, f, ENGRAM_ECHECKPOINT, 1, t->shape[i],
				      err,
				      "dimension %" PRIu32 " is %" PRIu64
				      ", must be one number",
				      i, t->shape[i]);
	status = safetensors_factor(c->files[f->file].path, t, out, err);
	if (status)
		return status;
	if (isfinite(*out) && *out > 0)
		return ENGRAM_OK;
	return misfit(c, f, ENGRAM_ECHECKPOINT, 0, 0, err,
		      "the scale is %g, must be positive", (double)*out);
}

static enum engram_status many_factors(const struct checkpoint *c,
				       const struct checkpoint_found *f,
				       struct engram_error *err)
{
	engram_error_set(err, ENGRAM_ECHECKPOINT,
			 "%s: tensor \"%s\": one of many scales, but "
			 "\"rows\" has the scale \"tensor\"",
			 c->files[f->file].path, f->name);
	engram_error_path(err, "%s", c->files[f->file].path);
	engram_error_fix(err, "name the one scale of the table in "
			      "tensors.scale, without \"{part}\"");
	return ENGRAM_ECHECKPOINT;
}

static enum engram_status find_scale(struct checkpoint *c,
				     struct checkpoint_shards *shards,
				     const char *const *patterns, float given,
				     struct checkpoint_layer *layer,
				     struct engram_error *err)
{
	static const char *const ue8m0[] = {"F8_E8M0", "U8", NULL};
	const bool tensor = c->scale_scheme == ENGRAM_SCALE_TENSOR;
	const bool wanted = c->scale_scheme != ENGRAM_SCALE_NONE && !given;
	enum engram_status status;
	struct checkpoint_found found;

	layer->tensor_scale = given ? given : 1.0f;
	status = checkpoint_names_find(c, shards, layer->layer_id, "scale",
				       patterns, &found, err);
	if (status)
		return status;
	if (!wanted)
		return found.tensor ? not_wanted(c, &found, given != 0, err)
				    : ENGRAM_OK;
	if (!found.tensor)
		return checkpoint_names_missing(c, layer->layer_id, "scale",
						patterns, err);
	if (!tensor)
		return take(c, shards, layer, &found,
			    &(struct form){ue8m0, layer->rows,
					   c->dim / c->block_size},
			    &layer->scale, err);
	if (checkpoint_names_part(found.pattern))
		return many_factors(c, &found, err);
	status = read_factor(c, &found, &layer->tensor_scale, err);
	if (status)
		return status;
	layer->scale.file = found.file;
	layer->scale.offset = found.tensor->offset;
	layer->scale.bytes = found.tensor->bytes;
	return ENGRAM_OK;
}

enum engram_status checkpoint_find_tensors(
	struct checkpoint *c, struct checkpoint_shards *shards,
	const struct checkpoint_options *options,
	struct checkpoint_layer *layer, struct engram_error *err)
{
	const char *const *weights = options->weight_patterns
					     ? options->weight_patterns
					     : default_weights;
	const char *const *scales = options->scale_patterns
					    ? options->scale_patterns
					    : default_scales;
	const float given = options->format ? options->format->tensor_scale : 0;
	enum engram_status status;

	status = find_weight(c, shards, weights, layer, err);
	status = checkpoint_fault(c, status, err);
	if (status)
		return status;
	status = find_scale(c, shards, scales, given, layer, err);
	return checkpoint_fault(c, status, err);
}
