/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "clock.h"
#include "lease.h"

static enum engram_status set_layer(struct lease *lease, uint32_t at,
				    uint32_t index, uint32_t tp_rank,
				    uint32_t tp_size, struct engram_error *err)
{
	const struct engram_segment_header *h =
		lease->gen->layers[index].header;

	lease->layers[at].index = index;
	return engram_shard_of(engram_segment_at(h, &h->primes), h->num_cols,
			       tp_rank, tp_size, &lease->layers[at].shard, err);
}

enum engram_status lease_new(struct client *client, struct table *table,
			     const uint32_t *layers, uint32_t num_layers,
			     uint32_t tp_rank, uint32_t tp_size,
			     struct lease **out, struct engram_error *err)
{
	enum engram_status status;
	struct lease *lease;
	uint32_t i;

	lease = calloc(1,
		       sizeof(*lease) + num_layers * sizeof(lease->layers[0]));
	if (!lease)
		return engram_error_set(err, ENGRAM_ENOMEM,
					"no memory for a lease");
	lease->client = client;
	lease->table = table;
	lease->gen = table->current;
	lease->start_ns = clock_ns();
	lease->num_layers = num_layers;
	for (i = 0; i < num_layers; i++) {
		status = set_layer(lease, i, layers[i], tp_rank, tp_size, err);
		if (status) {
			free(lease);
			return status;
		}
	}
	lease->id = ++client->server->next_lease;
	generation_get(lease->gen);
	table_lease(table, 1);
	LIST_INSERT_HEAD(&client->leases, lease, entry);
	*out = lease;
	return ENGRAM_OK;
}

struct lease *lease_find(const struct client *client, uint64_t id)
{
	struct lease *lease;

	LIST_FOREACH(lease, &client->leases, entry)
	if (lease->id == id)
		return lease;
	return NULL;
}

void lease_end(struct lease *lease)
{
	LIST_REMOVE(lease, entry);
	table_lease(lease->table, -1);
	/* Last: it may start the freeing of the table. */
	generation_put(lease->gen);
	free(lease);
}
