/* SPDX-License-Identifier: Apache-2.0 */
/* Inside libengram: the handle of engram_gather.h. */
#ifndef ENGRAM_CLIENT_GATHER_H
#define ENGRAM_CLIENT_GATHER_H

#include "client.h"
#include "engram_gather.h"
#include "engram_ring.h"

struct gather_batch {
	uint32_t layer;
	int64_t num_tokens;
	uint64_t misses;
	bool posted; /* else the calling thread reads all of it */
	uint64_t deadline_ns;
	struct engram_ring_post post;
};

struct engram_gather {
	engram_table *table;
	struct fork_entry fork_entry;
	int fd; /* of the ring, for the next engramd */
	struct engram_ring ring;
	int timeout_ms;
	uint32_t threads;
	int64_t id; /* of the ring, at this engramd */
	/* whom it was opened with last, well or not */
	uint64_t serial;
	int64_t lease;
	bool served; /* and engramd serves it */
	/* batch n is in slot n % slots */
	uint64_t num_posted, num_taken;
	uint32_t seq[ENGRAM_RING_SLOTS]; /* last posts of the slots */
	bool whole[ENGRAM_RING_SLOTS];	 /* and all their rows have come */
	struct gather_batch batches[ENGRAM_RING_SLOTS];
	uint64_t rows_gathered, rows_own, timeouts;
};

/* gather_open.c: the table has moved on; look whether engramd serves the ring
 * now. */
enum engram_status gather_sync(struct engram_gather *g,
			       struct engram_error *err);

/* gather.c: bytes of a row of the table, as packed. */
static inline bool gather_moved(const struct engram_gather *g)
{
	return g->lease != g->table->lease || g->serial != g->table->serial;
}

#endif
