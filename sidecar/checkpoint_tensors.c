/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

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
	return out->tensor ? ENGRAM_OK : missing(c, layer, what, patterns, err);
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
			      "different models; download both again");
	return status;
}

static enum engram_status check(const struct checkpoint *c,
				const struct found *f, const char *dtype,
				uint64_t rows, uint64_t width,
				struct engram_error *err)
{
	const struct safetensors_tensor *t = f->tensor;

	if (strcmp(t->dtype, dtype) && strcmp(t->dtype, "U8"))
		return misfit(c, f, ENGRAM_ECHECKPOINT, 0, 0, err,
			      "dtype %s, must be %s or U8", t->dtype, dtype);
	if (t->rank != 2)
		return misfit(c, f, ENGRAM_ECHECKPOINT, 2, t->rank, err,
			      "%" PRIu32 " dimensions, must be 2", t->rank);
	if (t->shape[1] != width)
		return misfit(c, f, ENGRAM_ECHECKPOINT, width, t->shape[1], err,
			      "rows of %" PRIu64 " elements, must be %" PRIu64,
			      t->shape[1], width);
	if (t->shape[0] != rows)
		return misfit(c, f, ENGRAM_EGEOMETRY, rows, t->shape[0], err,
			      "%" PRIu64 " rows, the hash needs %" PRIu64,
			      t->shape[0], rows);
	return ENGRAM_OK;
}

static struct checkpoint_tensor take(const struct found *f)
{
	return (struct checkpoint_tensor){
		.file = f->file,
		.offset = f->tensor->offset,
		.bytes = f->tensor->bytes,
		.dtype = ENGRAM_F8_E4M3,
		.shape = {f->tensor->shape[0], f->tensor->shape[1]},
	};
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
	enum engram_status status;
	struct found found;

	status = find(c, shards, layer->layer_id, "weight", weights, &found,
		      err);
	if (!status)
		status = check(c, &found, "F8_E4M3", layer->rows, c->dim, err);
	if (status)
		return status;
	layer->weight = take(&found);
	status = find(c, shards, layer->layer_id, "scale", scales, &found, err);
	if (!status)
		status = check(c, &found, "F8_E8M0", layer->rows,
			       c->dim / c->block_size, err);
	if (!status)
		layer->scale = take(&found);
	return status;
}
