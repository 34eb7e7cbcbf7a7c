/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "generation.h"

struct generation *generation_new(uint64_t number, uint32_t num_layers)
{
	struct generation *gen = calloc(1, sizeof(*gen));
	uint32_t i;

	if (!gen)
		return NULL;
	gen->layers = calloc(num_layers, sizeof(*gen->layers));
	if (!gen->layers) {
		free(gen);
		return NULL;
	}
	gen->number = number;
	gen->num_layers = num_layers;
	for (i = 0; i < num_layers; i++) {
		gen->layers[i].fd = -1;
		atomic_init(&gen->layers[i].huge_bytes, UINT64_MAX);
	}
	return gen;
}

static void let_go(struct generation *gen,
		   void (*discard)(struct engram_segment_writer *w))
{
	uint32_t i;

	if (!gen)
		return;
	for (i = 0; i < gen->num_layers; i++) {
		if (gen->layers[i].fd >= 0)
			close(gen->layers[i].fd);
		discard(gen->layers[i].writer);
	}
	free(gen->layers);
	free(gen);
}

void generation_free(struct generation *gen)
{
	let_go(gen, engram_segment_discard);
}

void generation_leave(struct generation *gen)
{
	let_go(gen, engram_segment_leave);
}

enum engram_status generation_identify(struct generation *gen,
				       struct engram_error *err)
{
	uint64_t ids[ENGRAM_LAYERS_MAX][2];
	XXH128_hash_t hash;
	uint32_t i;

	for (i = 0; i < gen->num_layers; i++) {
		struct generation_layer *layer = &gen->layers[i];
		enum engram_status status =
			engram_segment_reopen(layer->writer, &layer->fd, err);

		if (status)
			return status;
		memcpy(ids[i], layer->header->content_id, sizeof(ids[i]));
	}
	hash = XXH3_128bits(ids, gen->num_layers * sizeof(ids[0]));
	gen->content_id[0] = hash.low64;
	gen->content_id[1] = hash.high64;
	return ENGRAM_OK;
}

void generation_get(struct generation *gen)
{
	gen->users++;
}

void generation_put(void *arg)
{
	struct generation *gen = arg;

	if (--gen->users == 0 && gen->idle)
		gen->idle(gen->idle_ctx);
}

void generation_layer_map(const struct generation_layer *layer,
			  struct engram_segment_map *map)
{
	const char *base = engram_segment_writer_base(layer->writer);
	const struct engram_segment_header *h = layer->header;

	*map = (struct engram_segment_map){
		.header = h,
		.header_bytes = h->data_offset,
		.codes = base + h->codes_offset,
		.scales = base + h->scales_offset,
		.row_end = h->rows,
	};
}

void generation_layer_rows(const struct generation_layer *layer,
			   int64_t row_begin, int64_t row_end,
			   struct engram_rows *rows)
{
	const char *base = engram_segment_writer_base(layer->writer);
	const struct engram_segment_header *h = layer->header;

	*rows = (struct engram_rows){
		.codes = base + h->codes_offset +
			 (uint64_t)row_begin * h->code_stride,
		.scales = h->scale_stride ? base + h->scales_offset +
						    (uint64_t)row_begin *
							    h->scale_stride
					  : NULL,
		.code_stride_bytes = (int64_t)h->code_stride,
		.scale_stride_bytes = (int64_t)h->scale_stride,
		.row_begin = row_begin,
		.row_end = row_end,
		.dtype = h->dtype,
		.scale_scheme = h->scale_scheme,
		.dim = h->dim,
		.block_size = h->block_size,
		.tensor_scale = h->tensor_scale,
	};
}
