/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <unistd.h>

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
	for (i = 0; i < num_layers; i++)
		gen->layers[i].fd = -1;
	return gen;
}

void generation_free(struct generation *gen)
{
	uint32_t i;

	if (!gen)
		return;
	for (i = 0; i < gen->num_layers; i++) {
		if (gen->layers[i].fd >= 0)
			close(gen->layers[i].fd);
		engram_segment_discard(gen->layers[i].writer);
	}
	free(gen->layers);
	free(gen);
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
