/* SPDX-License-Identifier: Apache-2.0 */
#include "placement.h"

#include <inttypes.h>
#include <string.h>

#include "log.h"
#include "numa.h"

/* A share of an interleaved layer that is so much off is worth a warning. */
#define UNEVEN_PERCENT 10

void placement_measure(struct generation *gen,
		       const struct engram_backing *backing)
{
	struct engram_error err;
	uint64_t sum;
	uint32_t i, node;

	/* Reading it back takes a second for 200 GiB of small pages. */
	if (backing->numa == ENGRAM_NUMA_LOCAL && numa_nodes("") == 1)
		return;
	for (i = 0; i < gen->num_segments; i++) {
		struct generation_layer *layer = &gen->layers[i];

		sum = 0;
		if (!engram_segment_nodes(layer->writer, layer->node_bytes,
					  &err))
			for (node = 0; node < ENGRAM_NODES; node++)
				sum += layer->node_bytes[node];
		if (sum < layer->header->total_bytes)
			memset(layer->node_bytes, 0, sizeof(layer->node_bytes));
	}
}

static uint64_t on_nodes(const struct generation_layer *layer, uint64_t nodes)
{
	uint64_t sum = 0;
	unsigned int node;

	for (node = 0; node < ENGRAM_NODES; node++)
		if (nodes >> node & 1)
			sum += layer->node_bytes[node];
	return sum;
}

static enum engram_status check_bound(const struct generation_layer *layer,
				      uint64_t nodes, struct engram_error *err)
{
	const uint64_t total = layer->header->total_bytes;
	const uint64_t there = on_nodes(layer, nodes);
	char text[256];

	if (there >= total)
		return ENGRAM_OK;
	engram_error_set(err, ENGRAM_ENOSPACE,
			 "layer %d: %" PRIu64 " of %" PRIu64
			 " bytes are on node %.200s, and all must be",
			 (int)layer->layer_id, there, total,
			 numa_text(nodes, text, sizeof(text)));
	engram_error_fix(err, "free memory there, or set memory.numa to "
			      "\"interleave\" or \"local\"");
	engram_error_figures(err, total, there);
	return ENGRAM_ENOSPACE;
}

static void check_even(const struct generation_layer *layer, uint64_t nodes)
{
	const uint64_t count = (uint64_t)__builtin_popcountll(nodes);
	const uint64_t share = layer->header->total_bytes / count;
	unsigned int node;

	for (node = 0; node < ENGRAM_NODES; node++) {
		const uint64_t has = layer->node_bytes[node];

		if (!(nodes >> node & 1) ||
		    has + 2 * ENGRAM_SEGMENT_ALIGN >=
			    share - share * UNEVEN_PERCENT / 100)
			continue;
		log_warn("table is not spread evenly over the nodes",
			 LOG_I("layer", layer->layer_id), LOG_U("node", node),
			 LOG_U("bytes", has), LOG_U("share", share));
		return;
	}
}

enum engram_status placement_check(const struct generation *gen,
				   const struct engram_backing *backing,
				   struct engram_error *err)
{
	enum engram_status status = ENGRAM_OK;
	uint32_t i;

	for (i = 0; i < gen->num_segments && !status; i++) {
		const struct generation_layer *layer = &gen->layers[i];

		if (!on_nodes(layer, UINT64_MAX))
			continue;
		if (layer->replica)
			status = check_bound(
				layer, UINT64_C(1) << (layer->replica - 1),
				err);
		else if (backing->numa == ENGRAM_NUMA_BIND)
			status = check_bound(layer, backing->nodes, err);
		else if (backing->numa == ENGRAM_NUMA_INTERLEAVE)
			check_even(layer, backing->nodes);
	}
	return status;
}
