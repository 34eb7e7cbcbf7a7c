/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"
#include "engram_hash_math.h"
#include "hash.h"

/* The ids of a tile's n-grams: row s is s places back. */
typedef int64_t tile_values[ENGRAM_HASH_MAX_NGRAM][ENGRAM_HASH_TILE];

void engram_hash_rows_scalar(const int64_t *rolling, int64_t tokens,
			     const int64_t *primes, const int64_t *offsets,
			     uint32_t heads, int32_t *out, int64_t out_stride)
{
	for (int64_t t = 0; t < tokens; t++)
		for (uint32_t h = 0; h < heads; h++)
			out[t * out_stride + h] = engram_hash_row(
				rolling[t], primes[ENGRAM_MUTATE(20, h, 0)],
				offsets[h]);
}

/* For a few tokens the reciprocals cost more than they save. */
static engram_hash_rows_fn *rows_fn(int64_t tokens)
{
	if (tokens < 8)
		return engram_hash_rows_scalar;
	switch (engram_cpu_isa()) {
#ifdef __x86_64__
	case ENGRAM_ISA_AVX512:
		return engram_hash_rows_avx512;
	case ENGRAM_ISA_AVX2:
		return engram_hash_rows_avx2;
#endif
	default:
		return engram_hash_rows_scalar;
	}
}

static void gather_values(const struct engram_hash_params *params,
			  const struct engram_hash_batch *batch, int64_t first,
			  int64_t tokens, tile_values values)
{
	for (int64_t t = 0; t < tokens; t++) {
		struct engram_hash_place place = {.token = first + t};

		place.request = engram_hash_request(batch, place.token);
		place.chunk_start =
			engram_hash_chunk_start(batch, place.request);
		place.position =
			batch->positions[place.token * batch->position_stride];
		engram_hash_values(params, batch, &place, &values[0][t],
				   ENGRAM_HASH_TILE);
	}
}

/* One layer's columns of a tile; `out` is the layer's part of its first
 * token. */
static void hash_layer(const struct engram_hash_params *params, uint32_t layer,
		       int64_t tokens, tile_values values,
		       engram_hash_rows_fn *rows, int32_t *out,
		       int64_t out_stride)
{
	int64_t rolling[ENGRAM_HASH_TILE] = {0};
	uint32_t col = 0;

	for (uint32_t shift = 0; shift < params->max_ngram; shift++) {
		int64_t multiplier = params->multipliers[layer][shift];

		for (int64_t t = 0; t < tokens; t++)
			rolling[t] = engram_hash_roll(
				rolling[t], values[shift][t], multiplier);
		if (shift + 1 < params->min_ngram)
			continue;
		rows(rolling, tokens,
		     params->primes[layer] + ENGRAM_MUTATE(19, col, 0),
		     params->offsets[layer] + col, params->num_heads, out + col,
		     out_stride);
		col += params->num_heads;
	}
}

enum engram_status engram_cpu_hash(const struct engram_hash_params *params,
				   const struct engram_hash_batch *batch,
				   int32_t *out, struct engram_error *err)
{
	enum engram_status status = engram_hash_check(params, batch, err);
	engram_hash_rows_fn *rows = rows_fn(batch->num_tokens);
	int64_t cols, stride;

	if (status)
		return status;
	cols = (int64_t)(params->max_ngram - params->min_ngram + 1) *
	       params->num_heads;
	stride = cols * params->num_layers;
	for (int64_t first = 0; first < batch->num_tokens;
	     first += ENGRAM_HASH_TILE) {
		int64_t left = batch->num_tokens - first;
		int64_t tokens =
			left < ENGRAM_HASH_TILE ? left : ENGRAM_HASH_TILE;
		tile_values values;

		gather_values(params, batch, first, tokens, values);
		for (uint32_t layer = 0; layer < params->num_layers; layer++)
			hash_layer(params, layer, tokens, values, rows,
				   out + first * stride + layer * cols, stride);
	}
	return ENGRAM_OK;
}

static enum engram_status check_slots(const struct engram_hash_batch *batch,
				      struct engram_error *err)
{
	enum engram_status status = engram_check_slots(batch, err);

	if (status)
		return status;
	for (int64_t t = 0; t < batch->num_tokens; t++) {
		int64_t slot = batch->slot_mapping[t * batch->slot_stride];

		if (slot < batch->num_slots)
			continue;
		engram_error_set(err, ENGRAM_EINVAL,
				 "token %lld: slot %lld of a cache of %lld "
				 "slots",
				 (long long)t, (long long)slot,
				 (long long)batch->num_slots);
		engram_error_fix(err, "size the slot cache for the whole KV "
				      "cache, or map the token to -1");
		engram_error_path(err, "slot_mapping[%lld]", (long long)t);
		return ENGRAM_EINVAL;
	}
	return ENGRAM_OK;
}

enum engram_status engram_cpu_write_slots(
	const struct engram_hash_params *params,
	const struct engram_hash_batch *batch, struct engram_error *err)
{
	enum engram_status status = engram_hash_check(params, batch, err);

	if (status || !batch->num_tokens || !batch->slot_cache)
		return status;
	status = check_slots(batch, err);
	if (status)
		return status;
	for (int64_t t = 0; t < batch->num_tokens; t++) {
		int64_t slot = batch->slot_mapping[t * batch->slot_stride];

		if (ENGRAM_MUTATE(13, slot >= 0, 1))
			batch->slot_cache[slot < 0 ? 0 : slot] =
				engram_hash_of_batch(params, batch, t);
	}
	return ENGRAM_OK;
}
