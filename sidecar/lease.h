/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lease: what one connection holds of one generation.  It ends with
 * `detach` or with the connection.
 */
#ifndef ENGRAMD_LEASE_H
#define ENGRAMD_LEASE_H

#include <stdint.h>
#include <sys/queue.h>

#include "engram_geometry.h"
#include "server.h"

struct lease {
	LIST_ENTRY(lease) entry;
	uint64_t id;
	struct client *client;
	struct table *table;
	struct generation *gen;
	uint64_t start_ns;
	uint32_t num_layers;
	struct {
		uint32_t index; /* into gen->layers */
		struct engram_shard shard;
	} layers[];
};

/* `layers` holds indices into the current generation's layers, checked.
 * ENGRAM_EINVAL, ENGRAM_ESHARD (see engram_shard_of), ENGRAM_ENOMEM. */
enum engram_status lease_new(struct client *client, struct table *table,
			     const uint32_t *layers, uint32_t num_layers,
			     uint32_t tp_rank, uint32_t tp_size,
			     struct lease **out, struct engram_error *err);
struct lease *lease_find(const struct client *client, uint64_t id);
void lease_end(struct lease *lease);

#endif
