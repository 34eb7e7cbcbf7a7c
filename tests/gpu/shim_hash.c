/* SPDX-License-Identifier: Apache-2.0 */
/* The hash and the slot writer. */
#include <string.h>

#include "shim_parts.h"

/* What the counter holds beforehand: it is added to. */
#define COUNTER_START 1000

static uint64_t rejects;

uint64_t engram_shim_rejects(void)
{
	return rejects;
}

static void copy_layers(struct shim_call *call, const int64_t *const *from,
			const int64_t **to, uint32_t layers, int64_t count)
{
	for (uint32_t layer = 0; layer < layers; layer++) {
		struct shim_array array = SHIM_ARRAY1(from[layer], count, 1);

		to[layer] = shim_in(call, &array);
	}
}

int64_t shim_num_cols(const struct engram_hash_params *params)
{
	if (params->min_ngram < 1 || params->max_ngram < params->min_ngram)
		return 0;
	return ((int64_t)params->max_ngram - params->min_ngram + 1) *
	       params->num_heads;
}

void shim_copy_params(struct shim_call *call,
		      const struct engram_hash_params *params,
		      struct shim_hash_copy *copy)
{
	struct shim_array map =
		SHIM_ARRAY1(params->token_map, params->token_map_len, 1);
	int64_t cols = shim_num_cols(params);
	uint32_t layers = params->num_layers;

	copy->params = *params;
	copy->params.token_map = shim_in(call, &map);
	if (layers > SHIM_MAX_LAYERS)
		return; /* to be refused */
	copy_layers(call, params->multipliers, copy->multipliers, layers,
		    params->max_ngram);
	copy_layers(call, params->primes, copy->primes, layers, cols);
	copy_layers(call, params->offsets, copy->offsets, layers, cols);
	copy->params.multipliers = copy->multipliers;
	copy->params.primes = copy->primes;
	copy->params.offsets = copy->offsets;
}

/* Everything but the slots, which one call reads and the other writes. */
void shim_copy_batch(struct shim_call *call,
		     const struct engram_hash_batch *from,
		     struct engram_hash_batch *to)
{
	struct shim_array ids = SHIM_ARRAY1(from->input_ids, from->num_tokens,
					    from->input_stride);
	struct shim_array dead = SHIM_ARRAY1(from->dead_mask, from->num_tokens,
					     from->dead_stride);
	struct shim_array positions = SHIM_ARRAY1(
		from->positions, from->num_tokens, from->position_stride);
	struct shim_array bounds =
		SHIM_ARRAY1(from->query_start_loc, from->num_requests + 1,
			    from->query_stride);
	struct shim_array lookback = SHIM_ARRAY2(
		from->lookback_ids, from->num_requests, from->lookback_depth,
		from->lookback_row_stride, from->lookback_col_stride);
	struct shim_array lookback_dead = SHIM_ARRAY2(
		from->lookback_dead, from->num_requests, from->lookback_depth,
		from->lookback_dead_row_stride, from->lookback_dead_col_stride);
	struct shim_array mapping = SHIM_ARRAY1(
		from->slot_mapping, from->num_tokens, from->slot_stride);
	struct shim_array table = SHIM_ARRAY2(
		from->block_table, from->num_block_rows, from->max_blocks,
		from->block_row_stride, from->block_col_stride);

	*to = *from;
	to->input_ids = shim_in(call, &ids);
	to->dead_mask = shim_in(call, &dead);
	to->positions = shim_in(call, &positions);
	to->query_start_loc = shim_in(call, &bounds);
	to->lookback_ids = shim_in(call, &lookback);
	to->lookback_dead = shim_in(call, &lookback_dead);
	to->slot_mapping = shim_in(call, &mapping);
	to->block_table = shim_in(call, &table);
}

static void *counter(struct shim_call *call, uint64_t *value)
{
	struct shim_array array = SHIM_ARRAY1(value, 1, 1);

	*value = COUNTER_START;
	return engram_shim_options.no_rejects ? NULL : shim_inout(call, &array);
}

enum engram_status engram_shim_hash(const struct engram_hash_params *params,
				    const struct engram_hash_batch *batch,
				    int32_t *out, struct engram_error *err)
{
	struct shim_array result = SHIM_ARRAY1(
		out,
		batch->num_tokens * params->num_layers * shim_num_cols(params),
		1);
	struct shim_array cache =
		SHIM_ARRAY1(batch->slot_cache, batch->num_slots, 1);
	struct shim_hash_copy copy;
	struct shim_call call;
	enum engram_status status;
	uint64_t count, *device_count;

	shim_begin(&call);
	shim_copy_params(&call, params, &copy);
	shim_copy_batch(&call, batch, &copy.batch);
	copy.batch.slot_cache = shim_in(&call, &cache);
	device_count = counter(&call, &count);
	out = shim_out(&call, &result);
	status = shim_end(&call,
			  engram_cuda_hash(&copy.params, &copy.batch, out,
					   device_count, call.stream, err),
			  err);
	rejects = count - COUNTER_START;
	return status;
}

enum engram_status engram_shim_write_slots(
	const struct engram_hash_params *params,
	const struct engram_hash_batch *batch, struct engram_error *err)
{
	struct shim_array cache =
		SHIM_ARRAY1(batch->slot_cache, batch->num_slots, 1);
	struct shim_hash_copy copy;
	struct shim_call call;
	enum engram_status status;
	uint64_t count, *device_count;

	shim_begin(&call);
	shim_copy_params(&call, params, &copy);
	shim_copy_batch(&call, batch, &copy.batch);
	copy.batch.slot_cache = shim_inout(&call, &cache);
	device_count = counter(&call, &count);
	status = shim_end(&call,
			  engram_cuda_write_slots(&copy.params, &copy.batch,
						  device_count, call.stream,
						  err),
			  err);
	rejects = count - COUNTER_START;
	return status;
}
