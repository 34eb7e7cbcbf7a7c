/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGRAM_GPU_RANDOM_HASH_H
#define ENGRAM_GPU_RANDOM_HASH_H

#include "engram_kernels.h"
#include "random.h"

#define HASH_MAX_LAYERS 64

/* A random table and a random batch for it, with ids out of range. */
struct hash_case {
	struct engram_hash_params params;
	struct engram_hash_batch batch;
	int64_t *multipliers[HASH_MAX_LAYERS];
	int64_t *primes[HASH_MAX_LAYERS], *offsets[HASH_MAX_LAYERS];
	int32_t *map;
	int64_t cols;
	int32_t pad_raw; /* a raw id that compresses to the pad id */
	int64_t live;	 /* tokens below the last bound */
	struct view ids, dead, positions, bounds, lookback, lookback_dead;
	struct view slots, table;
	int32_t *cache;
};

void hash_case_make(struct hash_case *c, struct rng *rng);
void hash_case_free(struct hash_case *c);
void hash_case_say(const struct hash_case *c, char *why);

#endif
