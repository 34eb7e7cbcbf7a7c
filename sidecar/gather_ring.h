/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client's ring as the gather threads see it: what is bound to it, and the
 * batches under way.  The loop makes and frees it; any number of threads
 * serve it at once, without locks.
 */
#ifndef ENGRAMD_GATHER_RING_H
#define ENGRAMD_GATHER_RING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "engram_kernels.h"
#include "engram_ring.h"

/* Generations that one ring can ask for at a time. */
#define GATHER_BINDINGS 4
/* Batches of so many rows go first: a step of decoding waits for them. */
#define GATHER_SMALL_ROWS 8192u
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
	_Atomic bool closed;	  /* its rows may not be read any more */
	_Atomic uint32_t batches; /* that point here */
	uint32_t num_layers;
	struct {
		int32_t layer_id;
		struct engram_rows rows; /* of the lease's rank */
	} layers[];
};

/*
 * The batch of a slot.  It is handed out in units of rows by counting
 * `claim`; all else changes only while no unit of it is left, by the one
 * thread that has `admitting`.
 */
struct gather_batch {
	_Atomic uint64_t claim; /* seq << 32 | units handed out */
	_Atomic uint32_t units;
	_Atomic uint32_t units_left; /* not yet done */
	_Atomic uint32_t seen;	     /* the last number admitted */
	_Atomic bool admitting;
	_Atomic bool refused;
	_Atomic bool small;
	struct engram_ring_post post;
	uint32_t unit_rows, flag_units; /* units of a flag */
	struct gather_binding *binding;
	const struct engram_rows *rows;
	_Atomic uint32_t flag_left[ENGRAM_RING_FLAGS]; /* units */
};

struct gather_ring {
	struct gather_ring *next_dead;
	struct engram_ring ring;
	_Atomic(struct gather_binding *) bindings[GATHER_BINDINGS];
	struct gather_batch batches[ENGRAM_RING_SLOTS];
};

/* A part of a batch that one thread copies. */
struct gather_unit {
	struct gather_ring *ring;
	uint32_t slot, seq;
	uint32_t flag, begin, end; /* rows */
};

enum gather_admitted { GATHER_NOTHING, GATHER_ADMITTED, GATHER_REFUSED };

/* Look for a new post in the slot; at most `unit_rows` rows to a unit, and
 * some units for each of `threads`.  *units: how many there are now. */
enum gather_admitted gather_admit(struct gather_ring *ring, uint32_t slot,
				  uint32_t unit_rows, uint32_t threads,
				  uint32_t *units);
/* Take the next unit of the slot's batch, if there is one. */
bool gather_claim(struct gather_ring *ring, uint32_t slot,
		  struct gather_unit *out);
/* Copy its rows and raise its flag with its last unit.  Rows copied. */
uint32_t gather_serve(const struct gather_unit *unit);

#endif
