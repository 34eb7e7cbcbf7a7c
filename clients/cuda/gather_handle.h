/* SPDX-License-Identifier: Apache-2.0 */
/* Inside libengram_cuda: the handle of engram_cuda_gather.h. */
#ifndef ENGRAM_CUDA_GATHER_INTERNAL_H
#define ENGRAM_CUDA_GATHER_INTERNAL_H

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdatomic.h>

#include "engram_cuda_gather.h"
#include "engram_cuda_ring.h"
#include "engram_cuda_sieve.h"
#include "engram_gather.h"
#include "engram_ring.h"
#include "table.h"

/* A batch that the host has posted before its lookup. */
struct cuda_prefetched {
	uint32_t layer, flag_rows;
	uint32_t seq, posted_seq; /* of the last that engramd got */
	uint64_t generation;
	int64_t num_tokens;
	cudaEvent_t over; /* the stream has read the slot; NULL: none */
};

struct engram_cuda_gather {
	engram_cuda_table *table;
	engram_gather *host;
	const struct engram_ring *ring;
	int registered;
	struct engram_ring rescue; /* gather_rescue.c; or zeroed */
	int rescue_registered;
	uint64_t timeout_ns;
	uint32_t slots, next_slot; /* of lookups; the rest are prefetched to */
	/* device memory: states, counters, and room for a batch */
	struct engram_cuda_ring_state *states;
	struct engram_cuda_ring_counters *counters;
	uint8_t *staging;
	CUresult (*wait_value)(CUstream, CUdeviceptr, cuuint32_t, unsigned int);
	/* of a hybrid lookup: the part that the device reads itself */
	cudaStream_t side;
	cudaEvent_t fork, join;
	/* what was measured, smaller batches first */
	struct engram_ring_choice choices[ENGRAM_RING_CHOICES];
	uint32_t num_choices;

	/* gather_sieve.c; zeroed, or in this device memory */
	struct engram_cuda_sieve sieve;
	void *sieve_memory;
	uint32_t sieve_min_rows;
	uint64_t sieve_bytes;
	/* what it had counted, as of the time before last and the last */
	struct engram_ring_counts seen[2];

	/* gather_prefetch.c: batch n is in slot slots + n % num_prefetched */
	struct cuda_prefetched prefetched[ENGRAM_RING_SLOTS];
	uint32_t num_prefetched;
	uint64_t num_posted, num_taken;

	/* gather_watch.c: gives up what engramd does not deliver, for streams
	 * that wait without a kernel, and rescues */
	pthread_t watch;
	int watch_started;
	pthread_mutex_t lock;
	pthread_cond_t stop_cond;
	int stop;
};

/* ---- gather.c ---- */

enum engram_status cuda_gather_register(const struct engram_ring *ring,
					int *registered,
					struct engram_error *err);
void cuda_gather_unregister(const struct engram_ring *ring, int registered);

/* ---- gather_rescue.c ---- */

/* With a table that the device can not read. */
enum engram_status cuda_gather_rescue_open(struct engram_cuda_gather *g,
					   struct engram_error *err);
void cuda_gather_rescue_close(struct engram_cuda_gather *g);
/* Copy what is wanted: was there anything? */
int cuda_gather_rescue(struct engram_cuda_gather *g);

/* ---- gather_prefetch.c ---- */

void cuda_gather_prefetch_close(struct engram_cuda_gather *g);

/* ---- gather_watch.c ---- */

enum engram_status cuda_gather_watch_start(struct engram_cuda_gather *g,
					   struct engram_error *err);
void cuda_gather_watch_stop(struct engram_cuda_gather *g);

/* ---- gather_lookup.c ---- */

/* That of one slot. */
struct engram_cuda_ring cuda_gather_slot(struct engram_cuda_gather *g,
					 uint32_t slot);
/* Rows of a chunk of a batch of which engramd gathers so many rows: fetched by
 * one kernel, or by the copy engine. */
uint32_t cuda_gather_flag_rows(int64_t rows, int small);
int cuda_gather_is_small(const struct engram_cuda_source *source, int64_t rows);
/* Have the stream wait until a chunk was answered, or given up. */
enum engram_status cuda_gather_wait(const struct engram_cuda_gather *g,
				    const struct engram_cuda_ring *ring,
				    uint32_t chunk, engram_stream stream,
				    struct engram_error *err);
/* Have what comes next on the side wait for what is in the stream; and the
 * stream for the side. */
enum engram_status cuda_gather_fork(const struct engram_cuda_gather *g,
				    engram_stream stream,
				    struct engram_error *err);
enum engram_status cuda_gather_join(const struct engram_cuda_gather *g,
				    engram_stream stream,
				    struct engram_error *err);
/* What follows the post of a large batch. */
enum engram_status cuda_gather_fetch_large(
	struct engram_cuda_gather *g, const struct engram_cuda_ring *ring,
	const struct engram_cuda_ring_batch *batch, engram_stream stream,
	struct engram_error *err);
/* That of batches of about so many rows; NULL: nothing was measured. */
const struct engram_ring_choice *cuda_gather_choice(
	const struct engram_cuda_gather *g, int64_t num_rows);

/* ---- gather_sieve.c ---- */

enum engram_status cuda_gather_sieve_open(
	struct engram_cuda_gather *g, const struct engram_cuda_gather_params *p,
	struct engram_error *err);
void cuda_gather_sieve_close(struct engram_cuda_gather *g);
/* Of so many rows, how many have to be fetched, as of late. */
int64_t cuda_gather_expected(const struct engram_cuda_gather *g, int64_t rows);
/* A batch through the sieve; `ring` NULL: over UVA alone. */
enum engram_status cuda_gather_sieve_lookup(
	struct engram_cuda_gather *g, const struct engram_cuda_ring *ring,
	const struct engram_cuda_ring_batch *batch, uint32_t layer,
	uint32_t own_ppt, engram_stream stream, struct engram_error *err);

/* ---- gather_measure.c ---- */

/* Fill in the choices, here and in the ring.  The table is ready. */
enum engram_status cuda_gather_measure(struct engram_cuda_gather *g,
				       struct engram_error *err);

#endif
