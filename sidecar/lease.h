/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lease: what one connection holds of one generation.  It ends with
 * `detach` or with the connection.
 */
#ifndef ENGRAMD_LEASE_H
#define ENGRAMD_LEASE_H

#include <stdbool.h>
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
	bool writable; /* it got descriptors that can write */
	bool parked;   /* nobody reads by it any more */
	uint32_t copy; /* of the generation's */
	uint32_t num_layers;
	struct {
		uint32_t index; /* into gen->layers, those of the copy */
		struct engram_shard shard;
	} layers[];
};

/* What is asked for; `layers` holds indices into the current generation's
 * layers, checked. */
struct lease_terms {
	uint32_t layers[ENGRAM_LAYERS_MAX];
	uint32_t num_layers;
	uint32_t tp_rank, tp_size;
	uint32_t copy;
	bool writable;
};

/* ENGRAM_EINVAL, ENGRAM_ESHARD (see engram_shard_of), ENGRAM_ENOMEM. */
enum engram_status lease_new(struct client *client, struct table *table,
			     const struct lease_terms *terms,
			     struct lease **out, struct engram_error *err);
struct lease *lease_find(const struct client *client, uint64_t id);
/* Any that it has of that generation, or NULL. */
struct lease *lease_of(const struct client *client,
		       const struct generation *gen);
/* The node of memory that its copy is for, or -1: there is one copy. */
int lease_node(const struct lease *lease);
/* Nobody reads by it from here on, nor has rows gathered; it only holds its
 * memory, for the generation that comes to be in it. */
void lease_park(struct lease *lease);
void lease_end(struct lease *lease);

#endif
