/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which chunk is read next.  Chunks stand in a lane for each file system that
 * they are read from, so that several drives are busy at once, each in the
 * order of its files.  Any thread.
 */
#ifndef ENGRAMD_LOADER_QUEUE_H
#define ENGRAMD_LOADER_QUEUE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "loader_plan.h"
#include "sources.h"

struct loader_chunk {
	uint32_t layer; /* of those to be filled */
	uint64_t chunk; /* of that layer */
};

struct loader_lane {
	dev_t device;
	struct loader_chunk *chunks;
	uint64_t count;
	uint64_t next;	/* to be read */
	uint64_t ahead; /* to have memory for */
};

struct loader_queue {
	pthread_mutex_t lock;
	pthread_cond_t moved; /* a chunk was taken, or it is over */
	struct loader_chunk *chunks;
	struct loader_lane *lanes;
	uint32_t num_lanes;
	uint64_t most_ahead; /* chunks of a lane with memory and no reader */
	bool over;
};

/* The chunks of `count` layers.  ENGRAM_ENOMEM. */
enum engram_status loader_queue_init(struct loader_queue *queue,
				     const struct loader_plan *const *plans,
				     uint32_t count,
				     const struct sources *sources,
				     uint64_t most_ahead,
				     struct engram_error *err);
void loader_queue_free(struct loader_queue *queue);

uint64_t loader_queue_count(const struct loader_queue *queue);

/* The next chunk of a lane, or once that is done of the lane that has most
 * left; false: all are taken. */
bool loader_queue_take(struct loader_queue *queue, uint32_t lane,
		       struct loader_chunk *out);
/* The next chunk to have memory for; waits until it is not too early.  False:
 * there are no more, or it is over. */
bool loader_queue_ahead(struct loader_queue *queue, struct loader_chunk *out);
/* Nobody waits any longer. */
void loader_queue_end(struct loader_queue *queue);

#endif
