/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "synth.h"
#include "synth_rows.h"

/* Before and between the tables, so that nothing is aligned to anything. */
#define UNRELATED_BYTES 37

uint32_t synth_shard_of(const struct synth_options *o, uint32_t layer,
			bool scale)
{
	if (o->shards == 1)
		return 0;
	/* The first shard holds other weights, as in the released model. */
	return 1 + (layer + (scale && o->split_scales)) % (o->shards - 1);
}

void synth_file_name(const struct synth_options *o, uint32_t shard,
		     char out[64])
{
	if (o->single_file)
		snprintf(out, 64, "model.safetensors");
	else
		snprintf(out, 64, "model-%05u-of-%05u.safetensors", shard + 1,
			 o->shards);
}

void synth_tensor_name(const struct synth_options *o, uint32_t layer,
		       bool scale, char out[128])
{
	snprintf(out, 128, "%s.%" PRId32 ".engram.embed.%s", o->prefix,
		 o->layers[layer], scale ? "scale" : "weight");
}

static uint64_t width_of(const struct synth *s, bool scale)
{
	return scale ? s->options->dim / SYNTH_BLOCK : s->options->dim;
}

static uint64_t tensor_bytes(const struct synth *s, uint32_t layer, bool scale)
{
	return (uint64_t)s->geometry->rows[layer] * width_of(s, scale);
}

uint64_t synth_data_bytes(const struct synth *s)
{
	uint64_t bytes = (uint64_t)UNRELATED_BYTES * s->options->shards;

	for (uint32_t l = 0; l < s->options->num_layers; l++)
		bytes += tensor_bytes(s, l, false) + tensor_bytes(s, l, true);
	return bytes;
}

static void add_tensor(json_t *header, const char *name, const char *dtype,
		       json_t *shape, uint64_t *at, uint64_t bytes)
{
	json_object_set_new(header, name,
			    json_pack("{s:s, s:o, s:[I, I]}", "dtype", dtype,
				      "shape", shape, "data_offsets",
				      (json_int_t)*at,
				      (json_int_t)(*at + bytes)));
	*at += bytes;
}

/* The header of one shard, as text; malloc'd. */
static char *shard_header(const struct synth *s, uint32_t shard)
{
	const struct synth_options *o = s->options;
	json_t *header = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
	uint64_t at = 0;
	char name[128], *text;

	snprintf(name, sizeof(name), "unrelated.%u.bias", shard);
	add_tensor(header, name, "U8", json_pack("[i]", UNRELATED_BYTES), &at,
		   UNRELATED_BYTES);
	for (int scale = 0; scale < 2; scale++)
		for (uint32_t l = 0; l < o->num_layers; l++) {
			if (synth_shard_of(o, l, scale) != shard)
				continue;
			synth_tensor_name(o, l, scale, name);
			add_tensor(header, name,
				   scale ? o->scale_dtype : o->weight_dtype,
				   json_pack("[I, I]",
					     (json_int_t)s->geometry->rows[l],
					     (json_int_t)width_of(s, scale)),
				   &at, tensor_bytes(s, l, scale));
		}
	text = json_dumps(header, JSON_COMPACT);
	json_decref(header);
	return text;
}

static int put_rows(const struct synth *s, uint32_t layer, bool scale, FILE *f)
{
	const uint32_t width = (uint32_t)width_of(s, scale);
	const int32_t id =
		synth_seeded(s->options->layers[layer], s->options->seed);
	uint8_t *row = malloc(width);
	int ok = row != NULL;

	for (int64_t r = 0; ok && r < s->geometry->rows[layer]; r++) {
		if (scale)
			synth_scales(id, (uint64_t)r, width, row);
		else
			synth_codes(id, (uint64_t)r, width, row);
		ok = fwrite(row, width, 1, f) == 1;
	}
	free(row);
	return ok;
}

static int put_shard(const struct synth *s, uint32_t shard, const char *header,
		     FILE *f)
{
	static const char unrelated[UNRELATED_BYTES] = "unrelated weights";
	const uint64_t len = strlen(header);
	uint8_t le[8];
	int ok;

	for (int i = 0; i < 8; i++)
		le[i] = (uint8_t)(len >> 8 * i);
	ok = fwrite(le, sizeof(le), 1, f) == 1 &&
	     fwrite(header, len, 1, f) == 1 &&
	     fwrite(unrelated, sizeof(unrelated), 1, f) == 1;
	for (int scale = 0; scale < 2; scale++)
		for (uint32_t l = 0; ok && l < s->options->num_layers; l++)
			if (synth_shard_of(s->options, l, scale) == shard)
				ok = put_rows(s, l, scale, f);
	return ok;
}

static enum engram_status write_shard(const struct synth *s, uint32_t shard)
{
	char name[64], path[4200], *header;
	int ok, sys_errno;
	FILE *f;

	synth_file_name(s->options, shard, name);
	snprintf(path, sizeof(path), "%s/%s", s->dir, name);
	header = shard_header(s, shard);
	f = header ? fopen(path, "wbx") : NULL;
	if (!f) {
		sys_errno = header ? errno : ENOMEM;
		free(header);
		return engram_error_sys(s->err, sys_errno, "create %s", path);
	}
	setvbuf(f, NULL, _IOFBF, 1 << 20);
	errno = 0;
	ok = put_shard(s, shard, header, f);
	sys_errno = errno;
	free(header);
	if (fclose(f) && ok) {
		ok = 0;
		sys_errno = errno;
	}
	if (!ok)
		return engram_error_sys(s->err, sys_errno, "write %s", path);
	return ENGRAM_OK;
}

enum engram_status synth_write_shards(const struct synth *s)
{
	for (uint32_t f = 0; f < s->options->shards; f++) {
		enum engram_status status = write_shard(s, f);

		if (status)
			return status;
	}
	return ENGRAM_OK;
}
