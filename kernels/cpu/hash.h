/* SPDX-License-Identifier: Apache-2.0 */
/* Inside the CPU hash: checks, and the hot loop that has several versions. */
#ifndef ENGRAM_CPU_HASH_H
#define ENGRAM_CPU_HASH_H

#include "engram_kernels.h"

/* Tokens worked on at once: big enough that the divisors' reciprocals are
 * cheap, small enough that the ids stay in the first-level cache. */
#define ENGRAM_HASH_TILE 64

/*
 * out[t * out_stride + h] = rolling[t] mod primes[h] + offsets[h] for
 * t < tokens <= ENGRAM_HASH_TILE, h < heads; primes in 1..INT32_MAX.
 */
typedef void engram_hash_rows_fn(const int64_t *rolling, int64_t tokens,
				 const int64_t *primes, const int64_t *offsets,
				 uint32_t heads, int32_t *out,
				 int64_t out_stride);

engram_hash_rows_fn engram_hash_rows_scalar;
engram_hash_rows_fn engram_hash_rows_avx2;
engram_hash_rows_fn engram_hash_rows_avx512;

/* Whether the pointers, bounds and ids are such that nothing is read or
 * written out of place. */
enum engram_status engram_hash_check(const struct engram_hash_params *params,
				     const struct engram_hash_batch *batch,
				     struct engram_error *err);

#endif
