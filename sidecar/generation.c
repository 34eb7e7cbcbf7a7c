/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "generation.h"
#include "numa.h"
#include "spec.h"

static void place_copies(struct generation *gen,
			 const struct engram_backing *backing)
{
	const uint64_t nodes =
		backing->numa == ENGRAM_NUMA_REPLICATE ? backing->nodes : 0;
	uint32_t i, node, copy = 0;

	if (!nodes)
		return;
	for (node = 0; node < ENGRAM_NODES; node++) {
		const unsigned int near = numa_nearest("", nodes, node);

		gen->nearest[node] = (uint8_t)__builtin_popcountll(
			nodes & ((UINT64_C(1) << near) - 1));
		if (!(nodes >> node & 1))
			continue;
		for (i = 0; i < gen->num_layers; i++)
			generation_copy(gen, copy)[i].replica = node + 1;
		copy++;
	}
}

struct generation *generation_new(uint64_t number, uint32_t num_layers,
				  const struct engram_backing *backing)
{
	struct generation *gen = calloc(1, sizeof(*gen));
	uint32_t i;

	if (!gen)
		return NULL;
	gen->num_copies =
		backing->numa == ENGRAM_NUMA_REPLICATE
			? (uint32_t)__builtin_popcountll(backing->nodes)
			: 1;
	gen->num_segments = gen->num_copies * num_layers;
	gen->layers = calloc(gen->num_segments, sizeof(*gen->layers));
	if (!gen->layers) {
		free(gen);
		return NULL;
	}
	gen->number = number;
	gen->num_layers = num_layers;
	for (i = 0; i < gen->num_segments; i++) {
		gen->layers[i].fd = -1;
		atomic_init(&gen->layers[i].huge_bytes, UINT64_MAX);
	}
	place_copies(gen, backing);
	return gen;
}

struct generation_layer *generation_copy(const struct generation *gen,
					 uint32_t copy)
{
	return &gen->layers[copy * gen->num_layers];
}

struct generation_layer *generation_whole(const struct generation *gen)
{
	uint32_t copy, i;

	for (copy = 0; copy < gen->num_copies; copy++) {
		struct generation_layer *layers = generation_copy(gen, copy);

		for (i = 0; i < gen->num_layers && layers[i].writer; i++)
			;
		if (i == gen->num_layers)
			return layers;
	}
	return NULL;
}

void generation_release(struct generation *gen, bool leave)
{
	uint32_t i;

	for (i = 0; i < gen->num_segments; i++) {
		struct generation_layer *layer = &gen->layers[i];

		if (layer->fd >= 0)
			close(layer->fd);
		layer->fd = -1;
		if (leave)
			engram_segment_leave(layer->writer);
		else
			engram_segment_discard(layer->writer);
		layer->writer = NULL;
		layer->header = NULL;
	}
}

void generation_delete(struct generation *gen)
{
	table_spec_put(gen->spec);
	free(gen->layers);
	free(gen);
}

void generation_free(struct generation *gen)
{
	if (!gen)
		return;
	generation_release(gen, false);
	generation_delete(gen);
}

void generation_leave(struct generation *gen)
{
	if (!gen)
		return;
	generation_release(gen, true);
	generation_delete(gen);
}

enum engram_status generation_identify(struct generation *gen,
				       struct engram_error *err)
{
	const struct generation_layer *whole = generation_whole(gen);
	uint64_t ids[ENGRAM_LAYERS_MAX][2];
	enum engram_status status = ENGRAM_OK;
	XXH128_hash_t hash;
	uint32_t i;

	for (i = 0; i < gen->num_segments && !status; i++) {
		struct generation_layer *layer = &gen->layers[i];

		if (layer->writer && layer->fd < 0)
			status = engram_segment_reopen(layer->writer,
						       &layer->fd, err);
	}
	if (status)
		return status;
	for (i = 0; i < gen->num_layers; i++)
		memcpy(ids[i], whole[i].header->content_id, sizeof(ids[i]));
	hash = XXH3_128bits(ids, gen->num_layers * sizeof(ids[0]));
	gen->content_id[0] = hash.low64;
	gen->content_id[1] = hash.high64;
	return ENGRAM_OK;
}

struct fact {
	const char *name;
	int64_t is, was;
};

static enum engram_status same_facts(const struct fact *facts, size_t n,
				     struct engram_error *err)
{
	for (size_t i = 0; i < n; i++) {
		if (facts[i].is == facts[i].was)
			continue;
		return engram_error_set(err, ENGRAM_EGEOMETRY,
					"%s is %lld where it was %lld",
					facts[i].name, (long long)facts[i].is,
					(long long)facts[i].was);
	}
	return ENGRAM_OK;
}

enum engram_status generation_fits(const struct generation *gen, uint32_t index,
				   const struct engram_segment_header *h,
				   uint64_t token_map_len,
				   struct engram_error *err)
{
	const struct engram_segment_header *was =
		index < gen->num_layers ? gen->layers[index].header : NULL;

	if (!was)
		return engram_error_set(err, ENGRAM_EGEOMETRY,
					"layer %d is one more than before",
					(int)h->layer_id);
	const struct fact facts[] = {
		{"layer_id", h->layer_id, was->layer_id},
		{"record layout", h->record_layout, was->record_layout},
		{"dtype", h->dtype, was->dtype},
		{"scale scheme", h->scale_scheme, was->scale_scheme},
		{"dim", h->dim, was->dim},
		{"block_size", h->block_size, was->block_size},
		{"min_ngram", h->min_ngram, was->min_ngram},
		{"max_ngram", h->max_ngram, was->max_ngram},
		{"num_heads", h->num_heads, was->num_heads},
		{"num_cols", h->num_cols, was->num_cols},
		{"pad_id", h->pad_id, was->pad_id},
		{"length of the token map", (int64_t)token_map_len,
		 (int64_t)was->token_map.count},
		{"num_cuts", h->num_cuts, was->num_cuts},
		{"cut_ids",
		 memcmp(h->cut_ids, was->cut_ids, sizeof(h->cut_ids)) != 0, 0},
	};
	enum engram_status status =
		same_facts(facts, sizeof(facts) / sizeof(facts[0]), err);

	if (status)
		engram_error_context(err, "layer %d", (int)h->layer_id);
	return status;
}

void generation_get(struct generation *gen)
{
	gen->users++;
}

void generation_put(void *arg)
{
	struct generation *gen = arg;

	if (--gen->users == gen->parked && gen->idle)
		gen->idle(gen);
}

void generation_count_layer(struct generation *gen,
			    struct generation_layer *layer)
{
	layer->header = engram_segment_writer_header(layer->writer);
	gen->bytes += layer->header->total_bytes;
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
