/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What of a batch has to be fetched: neither rows that a cache in device memory
 * holds, nor any row twice.  A sieve stands before either way of reading them:
 *
 *	engram_cuda_sieve	finds both, and posts the rest through a ring
 *	engram_cuda_sieve_fetch	what is not posted, and each chunk that is
 *	engram_cuda_sieve_decode each row of the batch
 *	engram_cuda_sieve_fill	the cache, from what was fetched
 *
 * Errors, pointers and threads as engram_cuda_kernels.h says; the calls of one
 * sieve are ordered by streams, but that a fill and a decode of the same batch
 * may run at once.  How many rows are fetched only the device knows, so that a
 * captured graph does as its ids want.
 *
 * The cache is set-associative.  A row is found by its layer, its id and the
 * descriptor's epoch, so that what was before a change of the rows is never
 * found again.  Each entry counts its hits; a row that comes into a full set
 * takes the place of one that has none, or else takes one from the least.
 */
#ifndef ENGRAM_CUDA_SIEVE_H
#define ENGRAM_CUDA_SIEVE_H

#include "engram_cuda_ring.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ENGRAM_SIEVE_WAYS  8u	/* entries of a set */
#define ENGRAM_SIEVE_ALIGN 256u /* of records */

struct engram_cuda_sieve_counts {
	uint64_t rows;	  /* that were looked up */
	uint64_t hits;	  /* in the cache */
	uint64_t repeats; /* of rows that were fetched once */
	uint64_t fills;	  /* rows that the cache took */
};

struct engram_cuda_sieve_state { /* device memory, zeroed */
	struct engram_cuda_sieve_counts counts;
	/* of the last batch */
	uint32_t now;	    /* its number */
	uint32_t fetched;   /* rows; those from */
	uint32_t posted;    /* on not through the ring */
	uint32_t flag_rows; /* of a chunk of those that are */
	/* of the launch that runs */
	uint32_t next, left;
};

/* All of it device memory. */
struct engram_cuda_sieve {
	struct engram_cuda_sieve_state *state;
	uint32_t sets; /* 0: no cache */
	uint32_t max_rows;
	/* [sets, ENGRAM_SIEVE_WAYS], zeroed; 32-byte aligned */
	uint64_t *tags;
	uint32_t *uses;
	/* [seen_mask + 1], a power of two above 2 * max_rows; zeroed */
	uint64_t *seen;
	uint32_t *seen_number;
	uint32_t seen_mask;
	int32_t *wanted; /* [max_rows]: ids of what is fetched */
	int32_t *where;	 /* [max_rows]: the record of each row of a batch */
	/* [sets * ENGRAM_SIEVE_WAYS + max_rows], record_stride bytes each: the
	 * cache, and what was fetched; aligned to ENGRAM_SIEVE_ALIGN */
	uint8_t *records;
	uint32_t record_stride;		 /* that of the ring */
	struct engram_ring_counts *told; /* host memory: for people to see */
};

/* A batch: num_rows up to max_rows; of the structures, own_rows, flag_rows and
 * posted_seq do not count. */
struct engram_cuda_sieve_batch {
	struct engram_cuda_ring_batch batch;
	uint32_t layer;	  /* of the table; below 64 */
	uint32_t own_ppt; /* thousandths of what is fetched that are not
			   * posted */
	uint32_t flags;	  /* chunks, at most; 1..ENGRAM_RING_FLAGS */
};
#define ENGRAM_SIEVE_OWN (-1)

/* `ring` NULL: nothing is posted; so in all calls of the batch. */
enum engram_status engram_cuda_sieve(
	const struct engram_cuda_sieve *sieve,
	const struct engram_cuda_ring *ring,
	const struct engram_cuda_sieve_batch *batch, engram_stream stream,
	struct engram_error *err);
/*
 * A chunk, once one of the low two bits of its flag is set (which they are at
 * once for chunks that are not needed); what engramd did not deliver, as
 * engram_cuda_ring.h says.  ENGRAM_SIEVE_OWN: what is not posted, over UVA; and
 * this call, though there may be nothing, once before the decode.
 */
enum engram_status engram_cuda_sieve_fetch(
	const struct engram_cuda_sieve *sieve,
	const struct engram_cuda_ring *ring,
	const struct engram_cuda_sieve_batch *batch, int chunk,
	engram_stream stream, struct engram_error *err);
enum engram_status engram_cuda_sieve_decode(
	const struct engram_cuda_sieve *sieve,
	const struct engram_cuda_sieve_batch *batch, engram_stream stream,
	struct engram_error *err);
enum engram_status engram_cuda_sieve_fill(
	const struct engram_cuda_sieve *sieve,
	const struct engram_cuda_sieve_batch *batch, engram_stream stream,
	struct engram_error *err);

#ifdef __cplusplus
}
#endif
#endif
