/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernels that hash have in common. */
#ifndef ENGRAM_CUDA_HASH_CUH
#define ENGRAM_CUDA_HASH_CUH

#include "engram_hash_math.h"

/* A live token of the batch whose id the token map does not have. */
static __device__ int is_reject(const struct engram_hash_params *params,
				const struct engram_hash_batch *batch,
				int64_t token)
{
	int64_t live = batch->query_start_loc[batch->num_requests *
					      batch->query_stride];
	int32_t id = batch->input_ids[token * batch->input_stride];

	if (token >= live || (id >= 0 && id < params->token_map_len))
		return 0;
	return !batch->dead_mask ||
	       !batch->dead_mask[token * batch->dead_stride];
}

/* What the token `shift` places before a token is, and whether it blocks. */
static __device__ int32_t source_of(const struct engram_hash_params *params,
				    const struct engram_hash_batch *batch,
				    int64_t token, uint32_t shift)
{
	struct engram_hash_place place = {.token = token};

	place.request = engram_hash_request(batch, token);
	place.chunk_start = engram_hash_chunk_start(batch, place.request);
	place.position = batch->positions[token * batch->position_stride];
	return engram_hash_source(params, batch, &place, shift);
}

#endif
