/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "checkpoint_faults.h"
#include "checkpoint_tensors.h"

#define TENSOR_NAME_MAX 512

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

/* The pattern with the layer id in place of "{layer}". */
static int expand(const char *pattern, int32_t layer, char out[TENSOR_NAME_MAX])
{
	static const char mark[] = "{layer}";
	const char *at = strstr(pattern, mark);
	int n;

	if (at)
		n = snprintf(out, TENSOR_NAME_MAX, "%.*s%" PRId32 "%s",
			     (int)(at - pattern), pattern, layer,
			     at + sizeof(mark) - 1);
	else
		n = snprintf(out, TENSOR_NAME_MAX, "%s", pattern);
	return n > 0 && n < TENSOR_NAME_MAX;
}

struct found {
	const struct safetensors_tensor *tensor;
	char name[TENSOR_NAME_MAX];
	uint32_t file;
};

static enum engram_status missing(const struct checkpoint *c, int32_t layer,
				  const char *what, const char *const *patterns,
				  struct engram_error *err)
{
	char names[400] = "";

	for (; *patterns; patterns++) {
		char name[TENSOR_NAME_MAX];
		const size_t used = strlen(names);

		/* What does not fit any more is left out whole. */
		if (expand(*patterns, layer, name) &&
		    (size_t)snprintf(names + used, sizeof(names) - used,
				     "%s\"%s\"", used ? ", " : "",
				     name) >= sizeof(names) - used)
			names[used] = '\0';
	}
	engram_error_set(err, ENGRAM_ECHECKPOINT,
			 "%s: layer %" PRId32 ": no %s tensor; looked for %s",
			 c->dir, layer, what, names);
	engram_error_path(err, "%s", c->dir);
	engram_error_fix(err, "download the missing file, or name the tensor "
			      "in the table's \"tensors\"");
	return ENGRAM_ECHECKPOINT;
}

/* out->tensor is NULL if there is none. */
static enum engram_status find(struct checkpoint *c,
			       struct checkpoint_shards *shards, int32_t layer,
			       const char *what, const char *const *patterns,
			       struct found *out, struct engram_error *err)
{
	out->tensor = NULL;
	for (const char *const *p = patterns; *p; p++) {
		const struct safetensors_tensor *tensor;
		enum engram_status status;
		char name[TENSOR_NAME_MAX];
		uint32_t file;

		if (!expand(*p, layer, name))
			return engram_error_set(err, ENGRAM_EINVAL,
						"tensor pattern \"%.80s\" is "
						"too long",
						*p);
		status = checkpoint_shards_find(c, shards, name, &tensor, &file,
						err);
		if (status)
			return status;
		if (!tensor)
			continue;
		if (out->tensor) {
			engram_error_set(err, ENGRAM_ECHECKPOINT,
					 "%s: layer %" PRId32 ": two %s "
					 "tensors, \"%s\" and \"%s\"",
					 c->dir, layer, what, out->name, name);
			engram_error_path(err, "%s", c->dir);
			engram_error_fix(err, "name the right one in the "
					      "table's \"tensors\"");
			return ENGRAM_ECHECKPOINT;
		}
		out->tensor = tensor;
		out->file = file;
		memcpy(out->name, name, sizeof(out->name));
	}
	return ENGRAM_OK;
}

/* A fault of a tensor's shape or dtype, with what to do about it. */
static enum engram_status misfit(const struct checkpoint *c,
				 const struct found *f,
				 enum engram_status status, uint64_t needed,
				 uint64_t available, struct engram_error *err,
				 const char *fmt, ...) ENGRAM_PRINTF(7, 8);

static enum engram_status misfit(const struct checkpoint *c,
				 const struct found *f,
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

/* `dtypes` has the expected one first, then what may stand for it. */
static enum engram_status check(const struct checkpoint *c,
				const struct found *f,
				const char *const *dtypes, uint64_t rows,
				uint64_t width, struct engram_error *err)
{
	const struct safetensors_tensor *t = f->tensor;
	const uint64_t stored = stored_rows(c, rows);

	if (!is_one_of(t->dtype, dtypes))
		return misfit(c, f, ENGRAM_ECHECKPOINT, 0, 0, err,
			      "dtype %s, must be %s%s", t->dtype, dtypes[0],
			      dtypes[1] ? " or U8" : "");
	if (t->rank != 2)
		return misfit(c, f, ENGRAM_ECHECKPOINT, 2, t->rank, err,
			      "%" PRIu32 " dimensions, must be 2", t->rank);
	if (t->shape[1] != width)
		return misfit(c, f, ENGRAM_ECHECKPOINT, width, t->shape[1], err,
			      "rows of %" PRIu64 " elements, must be %" PRIu64,
			      t->shape[1], width);
	if (t->shape[0] == stored)
		return ENGRAM_OK;
	if (stored != rows)
		return misfit(c, f, ENGRAM_EGEOMETRY, stored, t->shape[0], err,
			      "%" PRIu64 " rows, the hash needs %" PRIu64
			      ", filled up to %" PRIu64,
			      t->shape[0], rows, stored);
	return misfit(c, f, ENGRAM_EGEOMETRY, rows, t->shape[0], err,
		      "%" PRIu64 " rows, the hash needs %" PRIu64, t->shape[0],
		      rows);
}

/* The rows that the hash needs; there may be more behind them. */
static struct checkpoint_tensor take(const struct checkpoint *c,
				     const struct found *f, uint64_t rows)
{
	return (struct checkpoint_tensor){
		.file = f->file,
		.offset = f->tensor->offset,
		.bytes = f->tensor->bytes / stored_rows(c, rows) * rows,
		.dtype = c->dtype,
		.shape = {rows, f->tensor->shape[1]},
	};
}

static enum engram_status find_weight(struct checkpoint *c,
				      struct checkpoint_shards *shards,
				      const char *const *patterns,
				      struct checkpoint_layer *layer,
				      struct engram_error *err)
{
	static const char *const fp8[] = {"F8_E4M3", "U8", NULL};
	static const char *const bf16[] = {"BF16", NULL};
	enum engram_status status;
	struct found found;

	status = find(c, shards, layer->layer_id, "weight", patterns, &found,
		      err);
	if (status)
		return status;
	if (!found.tensor)
		return missing(c, layer->layer_id, "weight", patterns, err);
	status = check(c, &found, c->dtype == ENGRAM_BF16 ? bf16 : fp8,
		       layer->rows, c->dim, err);
	if (!status)
		layer->weight = take(c, &found, layer->rows);
	return status;
}

/* A scale that nothing would be done with: the rows are not what the
 * configuration says. */
static enum engram_status not_wanted(const struct checkpoint *c,
				     const struct found *f, bool given,
				     struct engram_error *err)
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
				      const struct found *f, float *out,
				      struct engram_error *err)
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
	struct found found;

	layer->tensor_scale = given ? given : 1.0f;
	status = find(c, shards, layer->layer_id, "scale", patterns, &found,
		      err);
	if (status)
		return status;
	if (!wanted)
		return found.tensor ? not_wanted(c, &found, given != 0, err)
				    : ENGRAM_OK;
	if (!found.tensor)
		return missing(c, layer->layer_id, "scale", patterns, err);
	if (tensor)
		status = read_factor(c, &found, &layer->tensor_scale, err);
	else
		status = check(c, &found, ue8m0, layer->rows,
			       c->dim / c->block_size, err);
	if (status)
		return status;
	if (!tensor) {
		layer->scale = take(c, &found, layer->rows);
		return ENGRAM_OK;
	}
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
