/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lookups through a ring (shm/engram_ring.h), posted by the device itself: the
 * launches of a client of engramd.  Errors, pointers and threads as
 * engram_cuda_kernels.h says; all of it can be captured into a graph, since
 * sequence numbers are counted in device memory.
 *
 * Whatever engramd does not deliver is read over UVA from `source`; where that
 * has no rows (codes NULL), it is asked for in the rescue slot, if there is
 * one; else, or if it does not come from there either, it is zeros, and
 * counted.
 */
#ifndef ENGRAM_CUDA_RING_H
#define ENGRAM_CUDA_RING_H

#include "engram_cuda_kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

struct engram_ring_counts;
struct engram_ring_slot;

/* Of one slot, in device memory, zeroed when the ring is new.  Lookups of one
 * slot are ordered by streams. */
struct engram_cuda_ring_state {
	uint32_t seq;	    /* of the last lookup */
	uint32_t posted;    /* of the last that was posted */
	uint32_t unsettled; /* not all of that was answered: engramd may still
			     * write to the slot */
	/* of the launch that runs */
	uint32_t left;	   /* blocks that are done */
	uint32_t missing;  /* chunks that have not come */
	uint32_t decision; /* seq << 1 | whether it is posted; 0: not yet */
};

struct engram_cuda_ring_counters { /* in device memory */
	uint64_t posted;	   /* lookups */
	uint64_t fallback;	   /* rows read over UVA, or rescued */
	uint64_t failed;	   /* rows that nobody could read */
};

/* A slot: registered host memory, at its host address. */
struct engram_cuda_ring {
	struct engram_ring_slot *slot;
	uint64_t *ids;
	const uint8_t *rows;
	uint32_t row_stride;
	struct engram_ring_counts *counts; /* of the ring: for engramd to see */
	struct engram_cuda_ring_state *state;
	struct engram_cuda_ring_counters *counters;
	/* A slot of a ring of the same shape that is the client's own; it
	 * answers chunks all of whose ids have come.  NULL: none. */
	struct engram_ring_slot *rescue;
	uint64_t *rescue_ids;
	const uint8_t *rescue_rows;
};

/* Chunks of a lookup in one kernel: rows at most, and chunks at most. */
#define ENGRAM_CUDA_RING_CHUNK_ROWS 40u

struct engram_cuda_ring_batch {
	const struct engram_cuda_source *source; /* with a descriptor */
	const struct engram_lookup_args *args;
	int32_t layer_id;
	uint32_t flag_rows;  /* see engram_ring_flag_rows */
	uint64_t timeout_ns; /* of a kernel that waits */
	/* engram_cuda_ring_lookup: the last rows, which it reads over UVA
	 * meanwhile; below all of them */
	int64_t own_rows;
	/* not 0: the host has posted the batch with this number already, and
	 * keeps count of the slot; args->ids are what it has posted */
	uint32_t posted_seq;
	uint16_t *out;		   /* bf16; or, NULL: */
	struct engram_raw_out raw; /* as stored; tiles of scales are zeroed
				    * beforehand */
};

/* Can engram_cuda_ring_lookup decode rows of this kind? */
int engram_cuda_ring_can_lookup(const struct engram_rows *rows);

/*
 * A small batch in one kernel of few blocks: it posts, waits for the chunks and
 * decodes each as it comes.
 */
enum engram_status engram_cuda_ring_lookup(
	const struct engram_cuda_ring *ring,
	const struct engram_cuda_ring_batch *batch, engram_stream stream,
	struct engram_error *err);

/*
 * A large batch without a kernel that waits: post; then the caller makes the
 * stream wait until one of the low two bits of each flag is set, and copies the
 * chunk to device memory; decode; and, after all chunks, repair, which reads
 * what was not delivered.
 */
enum engram_status engram_cuda_ring_post(
	const struct engram_cuda_ring *ring,
	const struct engram_cuda_ring_batch *batch, engram_stream stream,
	struct engram_error *err);
/* Rows [begin, end) of the batch; `staged` holds row 0, at the ring's stride.
 */
enum engram_status engram_cuda_ring_decode(
	const struct engram_cuda_ring *ring,
	const struct engram_cuda_ring_batch *batch, const uint8_t *staged,
	int64_t begin, int64_t end, engram_stream stream,
	struct engram_error *err);
enum engram_status engram_cuda_ring_repair(
	const struct engram_cuda_ring *ring,
	const struct engram_cuda_ring_batch *batch, engram_stream stream,
	struct engram_error *err);

#ifdef __cplusplus
}
#endif
#endif
