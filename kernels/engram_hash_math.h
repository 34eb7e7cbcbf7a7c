/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The arithmetic of the n-gram hash, for C and CUDA C++.  No function reads
 * outside the arrays of a batch that engram_cpu_hash would accept, whatever
 * the values in them: ids out of range count as the pad id, places in the
 * block table and the slot cache are clamped.
 */
#ifndef ENGRAM_HASH_MATH_H
#define ENGRAM_HASH_MATH_H

#include "engram_kernels.h"
#include "engram_math.h"

/* Where a token stands. */
struct engram_hash_place {
	int64_t token;	  /* in the batch */
	int64_t position; /* in its request */
	int64_t request;
	int64_t chunk_start; /* position of the request's first token here */
};

ENGRAM_FN int64_t engram_hash_clamp(int64_t value, int64_t low, int64_t high)
{
	return value < low ? low : value > high ? high : value;
}

/*
 * The first request that ends after the token, so empty requests (repeated
 * bounds) never own one; the last request for tokens past all of them.
 */
ENGRAM_FN int64_t engram_hash_request(const struct engram_hash_batch *batch,
				      int64_t token)
{
	int64_t low = 0, high = batch->num_requests;

	while (low < high) {
		int64_t mid = low + (high - low) / 2;
		int64_t end =
			batch->query_start_loc[(mid + 1) * batch->query_stride];

		if (ENGRAM_MUTATE(1, token >= end, token > end))
			low = mid + 1;
		else
			high = mid;
	}
	return engram_hash_clamp(low, 0, batch->num_requests - 1);
}

ENGRAM_FN int64_t engram_hash_chunk_start(const struct engram_hash_batch *batch,
					  int64_t request)
{
	int64_t first = batch->query_start_loc[request * batch->query_stride];

	first = engram_hash_clamp(first, 0, batch->num_tokens - 1);
	return ENGRAM_MUTATE(2,
			     batch->positions[first * batch->position_stride],
			     batch->positions[0]);
}

/* raw id -> compressed id */
ENGRAM_FN int32_t engram_hash_compress(const struct engram_hash_params *params,
				       int64_t id)
{
	if (id < 0 || id >= params->token_map_len)
		return params->pad_id;
	return params->token_map ? params->token_map[id] : (int32_t)id;
}

/* The compressed id of a token of the batch. */
ENGRAM_FN int32_t engram_hash_of_batch(const struct engram_hash_params *params,
				       const struct engram_hash_batch *batch,
				       int64_t token)
{
	if (batch->dead_mask &&
	    ENGRAM_MUTATE(3, batch->dead_mask[token * batch->dead_stride] != 0,
			  batch->dead_mask[token * batch->dead_stride] == 0))
		return ENGRAM_DEAD_ID;
	return engram_hash_compress(
		params, batch->input_ids[token * batch->input_stride]);
}

/* The raw id `back` places before the request's newest look-back token. */
ENGRAM_FN int32_t engram_hash_lookback(const struct engram_hash_batch *batch,
				       int64_t request, int64_t back)
{
	int64_t col = ENGRAM_MUTATE(4, back, batch->lookback_depth - 1 - back);

	if (back >= batch->lookback_depth)
		return -1;
	return batch->lookback_ids[request * batch->lookback_row_stride +
				   col * batch->lookback_col_stride];
}

ENGRAM_FN int engram_hash_lookback_dead(const struct engram_hash_batch *batch,
					int64_t request, int64_t back)
{
	return ENGRAM_MUTATE(5, batch->lookback_dead != NULL, 0) &&
	       batch->lookback_dead[request * batch->lookback_dead_row_stride +
				    back * batch->lookback_dead_col_stride];
}

/* The compressed id that the slot cache has for a position of a request. */
ENGRAM_FN int32_t engram_hash_cached(const struct engram_hash_batch *batch,
				     int64_t request, int64_t position)
{
	int64_t size = batch->block_size;
	int64_t row = engram_hash_clamp(request, 0, batch->num_block_rows - 1);
	int64_t block, slot;

	position = engram_hash_clamp(position, 0, batch->max_blocks * size - 1);
	block = batch->block_table[row * batch->block_row_stride +
				   position / size * batch->block_col_stride];
	slot = block * size + ENGRAM_MUTATE(6, position % size, 0);
	return batch->slot_cache[ENGRAM_MUTATE(
		7, engram_hash_clamp(slot, 0, batch->num_slots - 1),
		(slot % batch->num_slots + batch->num_slots) %
			batch->num_slots)];
}

/*
 * The compressed id of the token `shift` places before a token, or
 * ENGRAM_DEAD_ID when it is dead or before the request's first.
 */
ENGRAM_FN int32_t engram_hash_found(const struct engram_hash_params *params,
				    const struct engram_hash_batch *batch,
				    const struct engram_hash_place *place,
				    int64_t shift)
{
	int64_t position, back;
	int32_t id;

	if (ENGRAM_MUTATE(8, place->position < shift,
			  place->position < shift - 1))
		return ENGRAM_DEAD_ID;
	position = place->position - shift;
	if (ENGRAM_MUTATE(9, position >= place->chunk_start,
			  position > place->chunk_start || shift == 0))
		return engram_hash_of_batch(
			params, batch,
			engram_hash_clamp(place->token - shift, 0,
					  batch->num_tokens - 1));

	back = place->chunk_start - 1 - position;
	id = engram_hash_lookback(batch, place->request, back);
	if (ENGRAM_MUTATE(10, id >= 0, id >= 0 && !batch->slot_cache)) {
		if (engram_hash_lookback_dead(batch, place->request, back))
			return ENGRAM_DEAD_ID;
		return engram_hash_compress(params, id);
	}
	if (batch->slot_cache)
		return engram_hash_cached(batch, place->request, position);
	return ENGRAM_MUTATE(11, params->pad_id, ENGRAM_DEAD_ID);
}

/* Whether an n-gram that comes from a later token ends before this one. */
ENGRAM_FN int engram_hash_is_cut(const struct engram_hash_params *params,
				 int32_t id)
{
	int cut = 0;

	/* To a constant end, so that kernels keep the ids where parameters
	 * are: an index that varies would copy all of them. */
	if (!params->num_cuts)
		return 0;
	for (uint32_t i = 0; i < ENGRAM_CUTS_MAX; i++)
		cut |= i < ENGRAM_MUTATE(27, params->num_cuts, 1) &&
		       params->cut_ids[i] == id;
	return cut;
}

/*
 * The same as a token's n-gram sees it: a token that ends a text is dead to
 * those after it, and alive to itself.
 */
ENGRAM_FN int32_t engram_hash_source(const struct engram_hash_params *params,
				     const struct engram_hash_batch *batch,
				     const struct engram_hash_place *place,
				     int64_t shift)
{
	int32_t id = engram_hash_found(params, batch, place, shift);

	return ENGRAM_MUTATE(26, shift > 0, 1) && engram_hash_is_cut(params, id)
		       ? ENGRAM_DEAD_ID
		       : id;
}

/*
 * The ids of one token's n-gram, value[s] being `s` places back, from its
 * sources.  A dead one turns itself and everything older into the pad id: an
 * n-gram does not reach across it.  `sources` past a dead one are not read.
 */
ENGRAM_FN int64_t engram_hash_value(const struct engram_hash_params *params,
				    int32_t source, int *blocked)
{
	if (ENGRAM_MUTATE(12, !*blocked, 1))
		*blocked = source == ENGRAM_DEAD_ID;
	return *blocked ? ENGRAM_MUTATE(
				  21, params->pad_id,
				  engram_hash_compress(params, params->pad_id))
			: source;
}

ENGRAM_FN void engram_hash_values(const struct engram_hash_params *params,
				  const struct engram_hash_batch *batch,
				  const struct engram_hash_place *place,
				  int64_t *value, int64_t stride)
{
	int blocked = 0;

	for (uint32_t shift = 0; shift < params->max_ngram; shift++) {
		int32_t source = params->pad_id;

		if (!blocked)
			source =
				engram_hash_source(params, batch, place, shift);
		value[shift * stride] =
			engram_hash_value(params, source, &blocked);
	}
}

/* One step of the rolling hash; wraps, as two's complement does. */
ENGRAM_FN int64_t engram_hash_roll(int64_t rolling, int64_t value,
				   int64_t multiplier)
{
	uint64_t product = (uint64_t)value * (uint64_t)multiplier;

	return (int64_t)ENGRAM_MUTATE(22, (uint64_t)rolling ^ product,
				      (uint64_t)rolling + product);
}

/* The remainder has the sign of the rolling hash, as in C. */
ENGRAM_FN int32_t engram_hash_row(int64_t rolling, int64_t prime,
				  int64_t offset)
{
	return (int32_t)(uint32_t)((uint64_t)(rolling % prime) +
				   (uint64_t)offset);
}

#endif
