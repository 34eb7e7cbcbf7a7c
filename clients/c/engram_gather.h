/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows gathered by engramd's threads.
 *
 *	engram_gather *g;
 *
 *	engram_gather_open(table, NULL, &g);
 *	engram_gather_lookup(g, 0, ids, cols, 1, num_tokens, rows, NULL);
 *	engram_gather_close(g);
 *	engram_detach(table);
 *
 * The rows are those of engram_lookup, bit for bit.  What engramd does not
 * deliver in time, because it is stopped, dead, overloaded or has no such
 * generation any more, the calling thread reads itself: a call does not fail
 * because of engramd.
 *
 * Threads: a handle is used by one thread at a time; open one for each thread
 * or stream.  The table stays attached for as long as the handle is open.
 * Fork: as engram.h says.
 */
#ifndef ENGRAM_GATHER_H
#define ENGRAM_GATHER_H

#include "engram.h"

#pragma GCC visibility push(default) /* libengram exports these */
#ifdef __cplusplus
extern "C" {
#endif

typedef struct engram_gather engram_gather;

struct engram_gather_params {
	uint32_t slots;	   /* batches under way at once, 1..8; 0: 2 */
	uint32_t max_rows; /* of a batch; more are several; 0: 65536 */
	int timeout_ms;	   /* for a batch; 0: 50 */
};

/*
 * Make a ring of slots * max_rows rows in this process's memory and hand it to
 * engramd.  NULL params are all defaults.  ENGRAM_EUNSUPPORTED when the
 * engramd has no gather threads; ENGRAM_EBUSY, ENGRAM_ENOSPACE (gather of its
 * configuration), ENGRAM_ENOMEM, ENGRAM_EDISCONNECTED.
 */
enum engram_status engram_gather_open(engram_table *table,
				      const struct engram_gather_params *params,
				      engram_gather **out);
/* Does not wait for engramd.  NULL is allowed. */
enum engram_status engram_gather_close(engram_gather *gather);

/* engram_lookup, whoever reads the rows. */
enum engram_status engram_gather_lookup(engram_gather *gather, uint32_t layer,
					const int32_t *ids,
					int64_t ids_token_stride,
					int64_t ids_head_stride,
					int64_t num_tokens, uint16_t *out,
					uint64_t *misses);

/*
 * The same in two calls, for ids that are known early: the rows come
 * while the caller does something else.  At most `slots` batches, each of at
 * most max_rows rows (ENGRAM_EINVAL), taken in the order they were posted; when
 * all are under way, ENGRAM_EBUSY.  The ids are copied.
 */
enum engram_status engram_gather_post(engram_gather *gather, uint32_t layer,
				      const int32_t *ids,
				      int64_t ids_token_stride,
				      int64_t ids_head_stride,
				      int64_t num_tokens);
/* The oldest batch: out bf16 [num_tokens, local_heads, dim].  ENGRAM_ENOTFOUND
 * when there is none. */
enum engram_status engram_gather_take(engram_gather *gather, uint16_t *out,
				      uint64_t *misses);

struct engram_gather_info {
	uint32_t threads;    /* of engramd */
	uint64_t ring_bytes; /* of this process's memory */
	/* since engram_gather_open */
	uint64_t rows_gathered; /* by engramd */
	uint64_t rows_own;	/* by the calling thread */
	uint64_t timeouts;	/* batches that engramd did not finish */
	int stalled; /* 1: engramd has not finished the last batch of the next
		      * slot, and gets none until it has */
};
enum engram_status engram_gather_info(const engram_gather *gather,
				      struct engram_gather_info *out);

/* For libraries above this one: the ring (shm/engram_ring.h) and engramd's
 * hold of it.  Whoever posts to the ring itself does not use the calls above.
 */
struct engram_ring;
const struct engram_ring *engram_gather_ring(const engram_gather *gather);
/* After the table has moved to another generation, or its connection to
 * another engramd: have this one serve the ring.  Costs nothing otherwise. */
enum engram_status engram_gather_sync(engram_gather *gather);
/* After a post, or before work that posts: wake engramd's threads if they
 * sleep.  A look at memory if they do not. */
void engram_gather_wake(engram_gather *gather);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
