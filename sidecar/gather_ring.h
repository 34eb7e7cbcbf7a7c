/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client's ring as the gather threads see it: what is bound to it, and which
 * parts of a batch have been taken.  The loop makes and frees it; any number of
 * threads serve it at once, without locks.
 *
 * Nothing is set up for a batch: every thread reads the post and cuts it into
 * the same units.  Small batches are for latency: a unit is a thread's share,
 * and each thread takes the one that is its own, by a word that nobody else
 * writes.  What is left, and large batches, are handed out by counting, in
 * order.
 */
#ifndef ENGRAMD_GATHER_RING_H
#define ENGRAMD_GATHER_RING_H

#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "engram_kernels.h"
#include "engram_ring.h"

/* Generations that one ring can ask for at a time. */
#define GATHER_BINDINGS 4
/* Batches of so many rows go first: a step of decoding waits for them. */
#define GATHER_SMALL_ROWS 8192u
/* Rows of a unit of chunks no larger than this. */
#define GATHER_UNIT_SMALL 64u
#define GATHER_UNIT_MIN	  32u

struct gather_leaving;
struct generation;

/* The layers of one lease. */
struct gather_binding {
	uint64_t lease;
	uint64_t generation;
	/* the loop's: the generation that it holds, and how it leaves */
	struct generation *gen;
	struct gather_leaving *leaving;
	/* For each node of memory the copy that threads there read, or NULL:
	 * there is one. */
	const uint8_t *nearest;
	uint32_t num_layers;
	struct {
		int32_t layer_id;
		struct engram_rows rows; /* of the lease's rank */
	} layers[]; /* of all copies: [copies][num_layers] */
};

/* What has been taken and done of the last batch of a slot: its number in the
 * upper half, so that nobody has to begin it. */
struct gather_slot {
	alignas(64) _Atomic uint64_t next; /* units handed out by counting */
	alignas(64) _Atomic uint64_t done; /* units, and GATHER_BAD */
	_Atomic uint64_t counted; /* the same, before their last flags */
	/* Of all batches, by who finishes one: where it has just been. */
	_Atomic uint64_t batches, refused, rows;
	_Atomic uint64_t flag_done[ENGRAM_RING_FLAGS]; /* the same, of each */
};
#define GATHER_BAD (UINT64_C(1) << 31) /* some were refused */

/* The last batch of which a thread has taken its own unit. */
struct gather_home {
	alignas(64) _Atomic uint32_t seq;
};

struct gather_ring {
	struct gather_ring *next_dead;
	struct engram_ring ring;
	uint64_t id;			   /* no two rings have the same */
	uint32_t start[ENGRAM_RING_SLOTS]; /* posts that are not for us */
	uint32_t threads;
	_Atomic(struct gather_binding *) bindings[GATHER_BINDINGS];
	struct gather_slot slots[ENGRAM_RING_SLOTS];
	struct gather_home homes[]; /* [ENGRAM_RING_SLOTS][threads] */
};

/* A post, and how it is cut. */
struct gather_plan {
	struct engram_ring_post post;
	bool sound;
	uint32_t units, homes; /* the first `homes` are threads' own */
	uint32_t unit_rows;
	uint32_t flag_units; /* units of a chunk; or, 0: */
	uint32_t unit_flags; /* chunks of a unit */
};

/* A part of a batch that one thread copies. */
struct gather_unit {
	struct gather_ring *ring;
	const struct gather_plan *plan;
	uint32_t slot, index;
};

enum gather_claimed {
	GATHER_UNIT,
	GATHER_LATER, /* ids are still to come, or others may be about to */
	GATHER_NO_MORE
};

struct gather_served {
	uint32_t rows;		/* copied */
	bool finished, refused; /* the batch */
};

struct gather_use {
	uint64_t batches, refused, rows;
};

/* What has been gathered through it; any thread. */
struct gather_use gather_ring_use(const struct gather_ring *ring);

/* Zeroed, for so many threads; NULL without memory. */
struct gather_ring *gather_ring_new(uint32_t threads);
void gather_ring_free(struct gather_ring *ring);
/* It is mapped: from here on posts are for this engramd. */
void gather_ring_begin(struct gather_ring *ring, uint64_t id);

/* Read the slot's post; at most `unit_rows` rows to a unit of a large one.
 * False if it is not whole. */
bool gather_look(const struct gather_ring *ring, uint32_t slot,
		 uint32_t unit_rows, struct gather_plan *plan);
/* Take a unit for a thread; those of other threads only if it may `help`. */
enum gather_claimed gather_claim(struct gather_ring *ring, uint32_t slot,
				 const struct gather_plan *plan,
				 uint32_t thread, bool help,
				 struct gather_unit *out);
/* Copy its rows and raise the flags of what is whole. */
struct gather_served gather_serve(const struct gather_unit *unit);

#endif
