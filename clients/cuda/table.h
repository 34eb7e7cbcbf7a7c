/* SPDX-License-Identifier: Apache-2.0 */
/* Inside libengram_cuda: what is behind the opaque handle. */
#ifndef ENGRAM_CUDA_TABLE_H
#define ENGRAM_CUDA_TABLE_H

#include <pthread.h>
#include <stdatomic.h>

#include "engram_cuda.h"
#include "register.h"

#define CUDA_LAYERS_MAX 64

enum cuda_state {
	CUDA_PREPARING, /* the background thread is at work */
	CUDA_READY,
	CUDA_FAILED
};

/* Counters of a handle, in device memory. */
struct cuda_counters {
	uint64_t misses, rejects;
};

/* Of the next generation (refresh.c). */
enum cuda_next_state {
	CUDA_NEXT_NONE,
	CUDA_NEXT_PREPARING, /* a thread registers, or copies, it */
	CUDA_NEXT_PREPARED,
	CUDA_NEXT_FAILED,
	CUDA_NEXT_RETIRING, /* a thread lets go of what was before */
	CUDA_NEXT_RETIRED
};

struct engram_cuda_table {
	/* changes in engram_cuda_table_refresh alone */
	engram_table *table;
	int parked; /* until then */
	int device;
	enum engram_cuda_placement placement;
	int read_only; /* registered as such */
	uint32_t num_layers, num_cols;
	struct engram_layer_info layers[CUDA_LAYERS_MAX];
	struct engram_cuda_source sources[CUDA_LAYERS_MAX];
	struct cuda_ranges ranges; /* what is registered or copied */
	char **copies;		   /* of the ranges' mappings, on the device */
	struct cuda_counters *counters;
	void *block; /* counters, descriptors, hash parameters */
	size_t block_bytes;
	uint64_t chunk_bytes;
	uint64_t device_bytes;
	int can_hash;
	struct engram_hash_params hash; /* device pointers */
	const int64_t *multipliers[CUDA_LAYERS_MAX];
	const int64_t *primes[CUDA_LAYERS_MAX];
	const int64_t *offsets[CUDA_LAYERS_MAX];

	/* the background thread's */
	pthread_t thread;
	int thread_started;
	atomic_int state; /* enum cuda_state */
	atomic_int cancel;
	atomic_uint_fast64_t done_bytes;
	atomic_uint_fast64_t nanoseconds;
	struct engram_error failure; /* once state is CUDA_FAILED */
	/* of the condition, and of what gather_rescue.c reads */
	pthread_mutex_t lock;
	pthread_cond_t changed;

	/* A handle of its own that becomes ready beside this one, and gets its
	 * memory in exchange: the thread's until next_state says otherwise. */
	struct engram_cuda_table *next;
	atomic_int next_state;
	pthread_t next_thread;
	int next_started;
	int64_t next_try; /* after a failure, CLOCK_MONOTONIC ns */
	struct engram_error next_failure;
	uint64_t epoch; /* counts refreshes */
	/* of a `next` */
	uint64_t generation;
	int same_memory; /* mapped as what it is next to, and nothing to copy */
	void *over;	 /* cudaEvent_t: nothing reads what was before */
};

/* ---- attach.c ---- */

/* What a handle reads, from its table. */
enum engram_status cuda_describe(struct engram_cuda_table *t,
				 struct engram_error *err);
/* What has to be registered or copied, and room for it and for the block.  What
 * was made before an error is cuda_memory_free's. */
enum engram_status cuda_memory_make(struct engram_cuda_table *t,
				    struct engram_error *err);
/* Unregister, and free; the table stays attached. */
void cuda_memory_free(struct engram_cuda_table *t);

/* ---- refresh.c ---- */

/* Have its thread end, and let go of all but what t->table holds. */
void cuda_next_stop(struct engram_cuda_table *t);

/* ---- block.c: the handle's device memory ---- */

/* Bytes of the block that a refresh leaves as they are. */
#define CUDA_BLOCK_KEPT sizeof(struct cuda_counters)

/* Descriptors, counters and hash parameters.  On an error nothing is
 * allocated. */
enum engram_status cuda_block_make(struct engram_cuda_table *t,
				   struct engram_error *err);
void cuda_block_free(struct engram_cuda_table *t);

/* Copy to the device and wait, on a stream that waits for no other. */
enum engram_status cuda_upload(void *device, const void *host, uint64_t bytes,
			       struct engram_error *err);

/* ---- table.c ---- */

/* May the layer be looked up?  Then what the kernel is to be told.  Sets the
 * thread's last error. */
enum engram_status cuda_begin_lookup(
	const struct engram_cuda_table *t, uint32_t layer,
	const struct engram_cuda_lookup_params *params,
	struct engram_lookup_args *args);
/* ENGRAM_EINVAL, with what to do instead, for a stream that is captured. */
enum engram_status cuda_check_not_capturing(engram_stream stream,
					    const char *fix,
					    struct engram_error *err);
/* Copy from the device, once what is in the stream is over; the stream must
 * not be captured. */
enum engram_status cuda_read_back(const struct engram_cuda_table *t, void *to,
				  const void *from, size_t bytes,
				  engram_stream stream,
				  struct engram_error *err);

/* ---- prepare.c: the background thread ---- */

enum engram_status cuda_prepare_start(struct engram_cuda_table *t,
				      struct engram_error *err);
/* The work of it, on the handle's device: register or copy all. */
enum engram_status cuda_prepare(struct engram_cuda_table *t,
				struct engram_error *err);
/* Have it stop where it is, and join it. */
void cuda_prepare_stop(struct engram_cuda_table *t);

#endif
