/* SPDX-License-Identifier: Apache-2.0 */
/* Hash and lookup of all layers, which the CPU backend has no function for. */
#include "shim_parts.h"

enum engram_status engram_shim_hash_lookup(
	const struct engram_hash_params *params,
	const struct engram_hash_batch *batch, const struct engram_rows *rows,
	uint32_t head_begin, uint32_t local_heads, uint16_t *const *outs,
	struct engram_shim_counts *counts, struct engram_error *err)
{
	struct engram_cuda_descriptor descriptors[SHIM_MAX_LAYERS];
	struct engram_cuda_source sources[SHIM_MAX_LAYERS];
	uint16_t *device_outs[SHIM_MAX_LAYERS];
	struct shim_array cache =
		SHIM_ARRAY1(batch->slot_cache, batch->num_slots, 1);
	struct shim_array misses = SHIM_ARRAY1(&counts->misses, 1, 1);
	struct shim_array rejects = SHIM_ARRAY1(&counts->rejects, 1, 1);
	int32_t *scratch = NULL;
	struct engram_cuda_step step = {.sources = sources,
					.outs = device_outs,
					.head_begin = head_begin,
					.local_heads = local_heads};
	struct shim_hash_copy copy;
	struct shim_call call;
	enum engram_status status;

	*counts = (struct engram_shim_counts){0};
	shim_begin(&call);
	shim_copy_params(&call, params, &copy);
	shim_copy_batch(&call, batch, &copy.batch);
	copy.batch.slot_cache = shim_inout(&call, &cache);
	for (uint32_t i = 0; i < params->num_layers; i++) {
		struct shim_array out = SHIM_ARRAY1(
			outs[i], batch->num_tokens * local_heads * rows[i].dim,
			1);

		sources[i] = shim_source_of(&call, &rows[i], &descriptors[i]);
		device_outs[i] = shim_out(&call, &out);
	}
	step.misses = shim_inout(&call, &misses);
	step.rejects = shim_inout(&call, &rejects);
	SHIM_CUDA(cudaMalloc((void **)&scratch,
			     (size_t)(batch->num_tokens * params->num_layers *
				      shim_num_cols(params)) *
					     sizeof(*scratch) +
				     1));
	step.ids = scratch;
	status = shim_end(&call,
			  engram_cuda_hash_lookup(
				  &copy.params, &copy.batch, &step,
				  engram_shim_options.grid, call.stream, err),
			  err);
	SHIM_CUDA(cudaFree(scratch));
	return status;
}
