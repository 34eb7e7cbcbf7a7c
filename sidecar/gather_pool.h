/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gather threads.  They look at all rings in turn, small batches first,
 * and copy rows; nothing else wakes them while there is traffic.  After
 * spin_us without work a thread sleeps, but for one, which goes on looking for
 * idle_ms and then looks only once a millisecond.  Clients see in their rings
 * that some sleep, and can have all of them woken.
 *
 * The loop puts rings in and takes them out.  What it takes out may be freed
 * once gather_pool_passed says that no thread looks at it any more.
 */
#ifndef ENGRAMD_GATHER_POOL_H
#define ENGRAMD_GATHER_POOL_H

#include <pthread.h>
#include <stdalign.h>

#include "engram_error.h"
#include "gather_ring.h"

#define GATHER_RINGS_MAX   64
#define GATHER_THREADS_MAX 128

struct gather_options {
	bool off;
	uint32_t threads;   /* 0: half of the cores, at most 8 */
	int32_t *cores;	    /* malloc'd: that they are pinned to */
	uint32_t num_cores; /* 0: wherever the kernel puts them */
	uint32_t spin_us, idle_ms, unit_rows;
	uint64_t ring_bytes; /* of one ring, at most */
};

struct gather_pool;

/* What a thread knows of the ring in a place: of each slot, numbers of batches.
 */
struct gather_known {
	uint64_t ring;			    /* its id */
	uint32_t over[ENGRAM_RING_SLOTS];   /* no unit is left */
	uint32_t begun[ENGRAM_RING_SLOTS];  /* it has taken a unit */
	uint32_t waited[ENGRAM_RING_SLOTS]; /* seen, and when: */
	uint64_t since[ENGRAM_RING_SLOTS];
};

struct gather_worker {
	/* A line of its own: the others only read it now and then. */
	alignas(64) _Atomic uint64_t passes; /* through the loop, holding
					      * nothing */
	_Atomic uint64_t rows, batches, refused;
	struct gather_pool *pool;
	pthread_t thread;
	uint32_t index;
	uint32_t turn, next_ring;
	_Atomic bool parked; /* asleep, holding nothing */
	/* its own: */
	struct gather_plan plan; /* of the post at hand */
	struct gather_known known[GATHER_RINGS_MAX];
};

struct gather_pool {
	struct gather_options options;
	uint32_t num_workers;
	struct gather_worker *workers;
	_Atomic bool stop;
	_Atomic(struct gather_ring *) rings[GATHER_RINGS_MAX];
	_Atomic uint32_t num_rings; /* places that may be taken */
	_Atomic bool leading;	    /* some idle thread is the one that looks */
	_Atomic bool asleep;	    /* and it looks only now and then */
	_Atomic bool told_asleep;   /* rings say that some thread sleeps */
	_Atomic(struct gather_ring *) dead; /* to be unmapped */
	_Atomic uint32_t sleepers;
	_Atomic uint32_t work;	  /* futex of those */
	_Atomic uint32_t bell;	  /* futex of the one that leads */
	_Atomic uint64_t last_ns; /* of the last batch, or bell */
};

/* Threads as the options say; not one is an error. */
enum engram_status gather_pool_start(struct gather_pool *pool,
				     const struct gather_options *options,
				     struct engram_error *err);
/* End the threads; then, what they have left to do and the pool. */
void gather_pool_join(struct gather_pool *pool);
void gather_pool_free(struct gather_pool *pool);

/* Loop thread: a free place, or -1; in; out. */
int gather_pool_place(const struct gather_pool *pool);
void gather_pool_put(struct gather_pool *pool, int place,
		     struct gather_ring *ring);
void gather_pool_take(struct gather_pool *pool, int place);
/* Something comes: all look. */
void gather_pool_wake(struct gather_pool *pool);

/* passes[num_workers] of now, and whether every thread has passed since. */
void gather_pool_passes(const struct gather_pool *pool, uint64_t *passes);
bool gather_pool_passed(const struct gather_pool *pool, const uint64_t *passes);
/* Have a thread unmap and free it: that takes too long for the loop. */
void gather_pool_bury(struct gather_pool *pool, struct gather_ring *ring);
void gather_pool_unmap_dead(struct gather_pool *pool);

struct gather_counts {
	uint64_t rows, batches, refused;
	double cpu_seconds;
};
void gather_pool_counts(const struct gather_pool *pool,
			struct gather_counts *out);

double gather_worker_cpu_seconds(const struct gather_worker *worker);

/* gather_worker.c: what a thread runs. */
void *gather_worker_main(void *worker);
void gather_tell_asleep(struct gather_pool *pool, bool asleep);

#endif
