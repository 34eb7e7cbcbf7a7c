/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "clock.h"
#include "lease.h"

static enum engram_status set_layer(struct lease *lease, uint32_t at,
				    const struct lease_terms *terms,
				    struct engram_error *err)
{
	const uint32_t index =
		terms->copy * lease->gen->num_layers + terms->layers[at];
	const struct engram_segment_header *h =
		lease->gen->layers[index].header;

	lease->layers[at].index = index;
	return engram_shard_of(engram_segment_at(h, &h->primes), h->num_cols,
			       terms->tp_rank, terms->tp_size,
			       &lease->layers[at].shard, err);
}

enum engram_status lease_new(struct client *client, struct table *table,
			     const struct lease_terms *terms,
			     struct lease **out, struct engram_error *err)
{
	enum engram_status status;
	struct lease *lease;
	uint32_t i;

	lease = calloc(1, sizeof(*lease) +
				  terms->num_layers * sizeof(lease->layers[0]));
	if (!lease)
		return engram_error_set(err, ENGRAM_ENOMEM,
					"no memory for a lease");
	lease->client = client;
	lease->table = table;
	lease->gen = table->current;
	lease->start_ns = clock_ns();
	lease->writable = terms->writable;
	lease->copy = terms->copy;
	lease->num_layers = terms->num_layers;
	for (i = 0; i < terms->num_layers; i++) {
		status = set_layer(lease, i, terms, err);
		if (status) {
			free(lease);
			return status;
		}
	}
	lease->id = ++client->server->next_lease;
	generation_get(lease->gen);
	lease->gen->leases++;
	lease->gen->copy_leases[lease->copy]++;
	table_lease(table, 1, lease->writable);
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

struct lease *lease_of(const struct client *client,
		       const struct generation *gen)
{
	struct lease *lease;

	LIST_FOREACH(lease, &client->leases, entry)
	if (lease->gen == gen)
		return lease;
	return NULL;
}

int lease_node(const struct lease *lease)
{
	return (int)generation_copy(lease->gen, lease->copy)->replica - 1;
}

void lease_park(struct lease *lease)
{
	if (lease->parked)
		return;
	gather_lease_ended(&lease->client->server->gather, lease);
	lease->parked = true;
	lease->gen->parked++;
	table_reload_step(lease->table);
}

void lease_end(struct lease *lease)
{
	gather_lease_ended(&lease->client->server->gather, lease);
	LIST_REMOVE(lease, entry);
	lease->gen->leases--;
	lease->gen->copy_leases[lease->copy]--;
	lease->gen->parked -= lease->parked;
	table_lease(lease->table, -1, lease->writable);
	/* Last: it may start the freeing of the table. */
	generation_put(lease->gen);
	free(lease);
}
