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
#include "engram_gather.h"
#include "engram_ring.h"
#include "table.h"

struct engram_cuda_gather {
	engram_cuda_table *table;
	engram_gather *host;
	const struct engram_ring *ring;
	int registered;
	uint64_t timeout_ns;
	uint32_t next_slot;
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

	/* gather_watch.c: gives up what engramd does not deliver, for streams
	 * that wait without a kernel */
	pthread_t watch;
	int watch_started;
	pthread_mutex_t lock;
	pthread_cond_t stop_cond;
	int stop;
};

/* ---- gather_watch.c ---- */

enum engram_status cuda_gather_watch_start(struct engram_cuda_gather *g,
					   struct engram_error *err);
void cuda_gather_watch_stop(struct engram_cuda_gather *g);

/* ---- gather_lookup.c ---- */

/* That of batches of about so many rows; NULL: nothing was measured. */
const struct engram_ring_choice *cuda_gather_choice(
	const struct engram_cuda_gather *g, int64_t num_rows);

/* ---- gather_measure.c ---- */

/* Fill in the choices, here and in the ring.  The table is ready. */
enum engram_status cuda_gather_measure(struct engram_cuda_gather *g,
				       struct engram_error *err);

#endif
