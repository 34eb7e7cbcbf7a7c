/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One launch for all layers.  A block hashes a few tokens: its threads first
 * find the ids of the tokens' n-grams, all shifts at once since each is a
 * chain of dependent loads, then share out the columns.
 */
#include "check.h"
#include "hash.cuh"
#include "launch.h"

#define TOKENS	   8 /* of a block; so that a small batch spreads out */
#define THREADS	   256
#define MAX_LAYERS 64

struct layers {
	const int64_t *multipliers[MAX_LAYERS];
	const int64_t *primes[MAX_LAYERS];
	const int64_t *offsets[MAX_LAYERS];
};

static __device__ void block_values(const struct engram_hash_params *params,
				    const int32_t *sources, int64_t *values)
{
	int blocked = 0;

	for (uint32_t shift = 0; shift < params->max_ngram; shift++)
		values[shift] =
			engram_hash_value(params, sources[shift], &blocked);
}

static __device__ int32_t row_of(const struct engram_hash_params *params,
				 const struct layers *layers, uint32_t layer,
				 uint32_t col, const int64_t *values)
{
	uint32_t last = params->min_ngram - 1 + col / params->num_heads;
	int64_t rolling = 0;

	for (uint32_t shift = 0; shift <= last; shift++)
		rolling = engram_hash_roll(rolling, values[shift],
					   layers->multipliers[layer][shift]);
	return engram_hash_row(rolling, layers->primes[layer][col],
			       layers->offsets[layer][col]);
}

static __global__ void __launch_bounds__(THREADS)
	hash_kernel(struct engram_hash_params params,
		    struct engram_hash_batch batch,
		    const __grid_constant__ struct layers layers,
		    int32_t *__restrict__ out,
		    unsigned long long *__restrict__ rejects)
{
	__shared__ int32_t sources[TOKENS][ENGRAM_HASH_MAX_NGRAM];
	__shared__ int64_t values[TOKENS][ENGRAM_HASH_MAX_NGRAM];
	int64_t first = (int64_t)blockIdx.x * TOKENS;
	int64_t left = batch.num_tokens - first;
	uint32_t tokens = (uint32_t)(left < TOKENS ? left : TOKENS);
	uint32_t cols =
		(params.max_ngram - params.min_ngram + 1) * params.num_heads;
	uint64_t width = (uint64_t)params.num_layers * cols;

	for (uint32_t i = threadIdx.x; i < tokens * params.max_ngram;
	     i += THREADS) {
		uint32_t token = i / params.max_ngram;
		uint32_t shift = i % params.max_ngram;

		sources[token][shift] =
			source_of(&params, &batch, first + token, shift);
		if (!shift && rejects &&
		    is_reject(&params, &batch, first + token))
			atomicAdd(rejects, 1ull);
	}
	__syncthreads();
	if (threadIdx.x < tokens)
		block_values(&params, sources[threadIdx.x],
			     values[threadIdx.x]);
	__syncthreads();
	for (uint64_t i = threadIdx.x; i < tokens * width; i += THREADS) {
		uint32_t token = (uint32_t)(i / width);
		uint32_t rest = (uint32_t)(i % width);

		out[(uint64_t)first * width + i] =
			row_of(&params, &layers, rest / cols, rest % cols,
			       values[token]);
	}
}

static __global__ void __launch_bounds__(THREADS)
	write_slots_kernel(struct engram_hash_params params,
			   struct engram_hash_batch batch,
			   unsigned long long *__restrict__ rejects)
{
	int64_t token = (int64_t)blockIdx.x * THREADS + threadIdx.x;
	int64_t slot;

	if (token >= batch.num_tokens)
		return;
	slot = batch.slot_mapping[token * batch.slot_stride];
	if (slot < 0)
		return;
	if (slot < batch.num_slots)
		batch.slot_cache[slot] =
			engram_hash_of_batch(&params, &batch, token);
	else if (rejects)
		atomicAdd(rejects, 1ull);
}

static enum engram_status check_layers(const struct engram_hash_params *params,
				       struct engram_error *err)
{
	if (params->num_layers <= MAX_LAYERS)
		return ENGRAM_OK;
	return engram_invalid(err, "num_layers", "more than 64",
			      "hash the layers in two calls");
}

/* Blocks for `count` things, `each` of them; 0 when a grid can not be that
 * large. */
static unsigned int blocks_for(int64_t count, int64_t each)
{
	int64_t blocks = count / each + (count % each != 0);

	return blocks <= INT32_MAX ? (unsigned int)blocks : 0;
}

static enum engram_status too_many(struct engram_error *err)
{
	return engram_invalid(err, "num_tokens", "too many for one launch",
			      "pass fewer at once");
}

enum engram_status engram_cuda_hash(const struct engram_hash_params *params,
				    const struct engram_hash_batch *batch,
				    int32_t *out, uint64_t *rejects,
				    engram_stream stream,
				    struct engram_error *err)
{
	enum engram_status status = engram_check_hash(params, batch, err);
	struct layers layers = {};
	unsigned int blocks;

	if (!status)
		status = check_layers(params, err);
	if (status || !batch->num_tokens || !params->num_layers)
		return status;
	if (!out)
		return engram_invalid(err, "out", "NULL",
				      "pass room for [num_tokens, "
				      "num_layers, cols]");
	blocks = blocks_for(batch->num_tokens, TOKENS);
	if (!blocks)
		return too_many(err);
	for (uint32_t i = 0; i < params->num_layers; i++) {
		layers.multipliers[i] = params->multipliers[i];
		layers.primes[i] = params->primes[i];
		layers.offsets[i] = params->offsets[i];
	}
	hash_kernel<<<blocks, THREADS, 0, stream>>>(
		*params, *batch, layers, out, (unsigned long long *)rejects);
	return engram_cuda_launched("hash kernel", err);
}

enum engram_status engram_cuda_write_slots(
	const struct engram_hash_params *params,
	const struct engram_hash_batch *batch, uint64_t *rejects,
	engram_stream stream, struct engram_error *err)
{
	enum engram_status status = engram_check_hash(params, batch, err);
	unsigned int blocks;

	if (status || !batch->num_tokens || !batch->slot_cache)
		return status;
	status = engram_check_slots(batch, err);
	if (status)
		return status;
	blocks = blocks_for(batch->num_tokens, THREADS);
	if (!blocks)
		return too_many(err);
	write_slots_kernel<<<blocks, THREADS, 0, stream>>>(
		*params, *batch, (unsigned long long *)rejects);
	return engram_cuda_launched("slot kernel", err);
}
