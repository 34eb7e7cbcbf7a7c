/* SPDX-License-Identifier: Apache-2.0 */
/* The launches of the fake device: the CPU backend, at once. */
#include "engram_cuda_kernels.h"

static const struct engram_rows *rows_of(
	const struct engram_cuda_source *source)
{
	return source->descriptor ? &source->descriptor->rows : &source->rows;
}

enum engram_status engram_cuda_hash(const struct engram_hash_params *params,
				    const struct engram_hash_batch *batch,
				    int32_t *out, uint64_t *rejects,
				    engram_stream stream,
				    struct engram_error *err)
{
	(void)rejects;
	(void)stream;
	return engram_cpu_hash(params, batch, out, err);
}

enum engram_status engram_cuda_write_slots(
	const struct engram_hash_params *params,
	const struct engram_hash_batch *batch, uint64_t *rejects,
	engram_stream stream, struct engram_error *err)
{
	(void)rejects;
	(void)stream;
	return engram_cpu_write_slots(params, batch, err);
}

enum engram_status engram_cuda_lookup(const struct engram_cuda_source *source,
				      const struct engram_lookup_args *args,
				      uint16_t *out,
				      const struct engram_cuda_grid *grid,
				      engram_stream stream,
				      struct engram_error *err)
{
	(void)grid;
	(void)stream;
	return engram_cpu_lookup(rows_of(source), args, out, err);
}

enum engram_status engram_cuda_lookup_raw(
	const struct engram_cuda_source *source,
	const struct engram_lookup_args *args, const struct engram_raw_out *out,
	const struct engram_cuda_grid *grid, engram_stream stream,
	struct engram_error *err)
{
	(void)grid;
	(void)stream;
	return engram_cpu_lookup_raw(rows_of(source), args, out, err);
}

enum engram_status engram_cuda_hash_lookup(
	const struct engram_hash_params *params,
	const struct engram_hash_batch *batch,
	const struct engram_cuda_step *step,
	const struct engram_cuda_grid *grid, engram_stream stream,
	struct engram_error *err)
{
	uint32_t cols =
		(params->max_ngram - params->min_ngram + 1) * params->num_heads;
	enum engram_status status = ENGRAM_OK;

	if (batch->slot_cache && batch->slot_mapping)
		status = engram_cpu_write_slots(params, batch, err);
	if (!status)
		status = engram_cpu_hash(params, batch, step->ids, err);
	for (uint32_t i = 0; i < params->num_layers && !status; i++) {
		const struct engram_lookup_args args = {
			.ids = step->ids + (size_t)i * cols,
			.ids_token_stride = (int64_t)params->num_layers * cols,
			.ids_head_stride = 1,
			.num_tokens = batch->num_tokens,
			.head_begin = step->head_begin,
			.local_heads = step->local_heads,
			.total_heads = cols,
			.misses = step->misses,
		};

		status = engram_cuda_lookup(&step->sources[i], &args,
					    step->outs[i], grid, stream, err);
	}
	return status;
}
