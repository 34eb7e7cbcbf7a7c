/* SPDX-License-Identifier: Apache-2.0 */
/* Inside the shim: device copies of the larger arguments. */
#ifndef ENGRAM_SHIM_PARTS_H
#define ENGRAM_SHIM_PARTS_H

#include "shim_call.h"

#define SHIM_MAX_LAYERS 64

struct shim_hash_copy {
	struct engram_hash_params params;
	struct engram_hash_batch batch;
	const int64_t *multipliers[SHIM_MAX_LAYERS];
	const int64_t *primes[SHIM_MAX_LAYERS], *offsets[SHIM_MAX_LAYERS];
};

int64_t shim_num_cols(const struct engram_hash_params *params);
void shim_copy_params(struct shim_call *call,
		      const struct engram_hash_params *params,
		      struct shim_hash_copy *copy);
/* Everything but the slots, which one call reads and the other writes. */
void shim_copy_batch(struct shim_call *call,
		     const struct engram_hash_batch *from,
		     struct engram_hash_batch *to);

/* As the shim's options say; `descriptor` is for the host's copy of it. */
struct engram_cuda_source shim_source_of(
	struct shim_call *call, const struct engram_rows *rows,
	struct engram_cuda_descriptor *descriptor);

/* Of a row. */
int64_t shim_code_bytes(const struct engram_rows *rows);
int64_t shim_scale_bytes(const struct engram_rows *rows);

/* In shim_ring.c: through a ring that serves `rows`; to `out`, or to `raw`. */
enum engram_status shim_ring_lookup(struct shim_call *call,
				    const struct engram_rows *rows,
				    const struct engram_cuda_source *source,
				    const struct engram_lookup_args *args,
				    uint16_t *out,
				    const struct engram_raw_out *raw,
				    struct engram_error *err);
struct engram_cuda_ring;
struct engram_cuda_ring_batch;
struct engram_ring;

/* In shim_sieve.c: the same, through a sieve. */
enum engram_status shim_sieve_lookup(const struct engram_ring *client,
				     const struct engram_cuda_ring *ring,
				     const struct engram_cuda_ring_batch *batch,
				     uint32_t rows, cudaStream_t stream,
				     struct engram_error *err);

#endif
