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

struct engram_cuda_table {
	/* never changes after engram_cuda_attach */
	engram_table *table;
	int device;
	enum engram_cuda_placement placement;
	int read_only; /* registered as such */
	uint32_t num_layers, num_cols;
	struct engram_layer_info layers[CUDA_LAYERS_MAX];
	struct engram_cuda_source sources[CUDA_LAYERS_MAX];
	struct cuda_ranges ranges; /* what is registered or copied */
	char **copies;		   /* of the ranges' mappings, on the device */
	struct cuda_counters *counters;
	void *block; /* descriptors, counters, hash parameters */
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
	pthread_mutex_t lock;	     /* for the condition alone */
	pthread_cond_t changed;
};

/* ---- block.c: the handle's device memory ---- */

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
/* Copy from the device, once what is in the stream is over; the stream must
 * not be captured. */
enum engram_status cuda_read_back(const struct engram_cuda_table *t, void *to,
				  const void *from, size_t bytes,
				  engram_stream stream,
				  struct engram_error *err);

/* ---- prepare.c: the background thread ---- */

enum engram_status cuda_prepare_start(struct engram_cuda_table *t,
				      struct engram_error *err);
/* Have it stop where it is, and join it. */
void cuda_prepare_stop(struct engram_cuda_table *t);

#endif
