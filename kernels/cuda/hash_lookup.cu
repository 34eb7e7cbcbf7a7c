/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hash and lookup of all layers in one launch, for decode steps: there the
 * start of a kernel and the ids' way through memory cost as much as the rows.
 * A warp takes tiles of four rows; its lanes are four rows of eight shifts, and
 * each finds one source of a row's n-gram.
 */
#include "check.h"
#include "hash.cuh"
#include "launch.h"
#include "lookup_plan.h"

#define MAX_LAYERS 8
#define MAX_SHIFTS 8
/* Past so many rows little is gained (tests/bench/README.md). */
#define MAX_ROWS 1536

struct step_layer {
	struct engram_rows rows;
	const struct engram_cuda_descriptor *descriptor;
	const int64_t *multipliers, *primes, *offsets;
	uint16_t *out;
};

struct step_task {
	struct engram_hash_params params;
	struct engram_hash_batch batch;
	struct step_layer layers[MAX_LAYERS];
	uint32_t head_begin, local_heads;
	uint32_t rows; /* of a layer: num_tokens * local_heads */
	uint64_t *misses;
	unsigned long long *rejects;
};

/* What this lane adds to the rolling hash of its row: its source, or the pad
 * id behind a dead one, times its multiplier. */
static __device__ uint64_t share_of(const struct step_task &task,
				    const struct step_layer &layer,
				    int64_t token, uint32_t shift,
				    uint32_t last, int real)
{
	int32_t source = task.params.pad_id;
	int64_t multiplier = 0;
	uint32_t dead;
	int blocked;

	if (real && shift <= last) {
		multiplier = layer.multipliers[shift];
		source = source_of(&task.params, &task.batch, token, shift);
	}
	dead = __ballot_sync(~0u, source == ENGRAM_DEAD_ID);
	dead = dead >> (threadIdx.x % WARP - shift) & ((2u << shift) - 1);
	blocked = dead != 0;
	return (uint64_t)(blocked ? (int64_t)task.params.pad_id : source) *
	       (uint64_t)multiplier;
}

/* The id of row `at`, in all of its eight lanes; rejects are counted by the
 * first layer's lanes alone. */
static __device__ int32_t hash_row(const struct step_task &task, uint32_t layer,
				   uint32_t at, int *real)
{
	const struct step_layer &l = task.layers[layer];
	uint32_t cols = (task.params.max_ngram - task.params.min_ngram + 1) *
			task.params.num_heads;
	uint32_t shift = threadIdx.x % MAX_SHIFTS;
	uint32_t local = at % task.local_heads;
	uint32_t head = task.head_begin + local;
	int64_t token = at / task.local_heads;
	int64_t prime = 1, offset = 0;
	uint64_t rolling;

	*real = at < task.rows && head < cols;
	if (*real) {
		prime = l.primes[head];
		offset = l.offsets[head];
	}
	rolling = share_of(task, l, token, shift,
			   task.params.min_ngram - 1 +
				   head / task.params.num_heads,
			   *real);
	for (int step = 1; step < MAX_SHIFTS; step *= 2)
		rolling ^= __shfl_xor_sync(~0u, rolling, step);
	if (task.rejects && at < task.rows && !layer && !local && !shift &&
	    is_reject(&task.params, &task.batch, token))
		atomicAdd(task.rejects, 1ull);
	return engram_hash_row((int64_t)rolling, prime, offset);
}

static __device__ void step_tile(const struct step_task &task, uint32_t layer,
				 uint32_t first, uint32_t *misses)
{
	const struct step_layer &l = task.layers[layer];
	struct lookup_task lookup = {};
	uint32_t lane = threadIdx.x % WARP, row = lane % DEPTH;
	uint32_t left = task.rows - first;
	struct engram_rows rows;
	int64_t index = -1;
	int32_t id;
	int real;

	id = hash_row(task, layer, first + lane / MAX_SHIFTS, &real);
	id = __shfl_sync(~0u, id, row * MAX_SHIFTS);
	real = __shfl_sync(~0u, real, row * MAX_SHIFTS);
	lookup.rows = l.rows;
	lookup.descriptor = l.descriptor;
	lookup.out = l.out;
	rows = rows_now(lookup);
	if (lane < DEPTH && real) {
		if (engram_row_is_here(&rows, id))
			index = id - rows.row_begin;
		else
			++*misses;
	}
	tile_of_256<false>(lookup, rows, first, left < DEPTH ? left : DEPTH,
			   index, lane);
}

static __global__ void __launch_bounds__(THREADS, 1)
	step_kernel(const __grid_constant__ struct step_task task)
{
	uint32_t tiles = (task.rows + DEPTH - 1) / DEPTH, misses = 0;
	uint32_t step = gridDim.x * WARPS;

	for (uint32_t i = blockIdx.x * WARPS + threadIdx.x / WARP;
	     i < tiles * task.params.num_layers; i += step)
		step_tile(task, i / tiles, i % tiles * DEPTH, &misses);
	count_misses(task.misses, misses);
}

static struct engram_lookup_args args_of(
	const struct engram_hash_params *params,
	const struct engram_hash_batch *batch,
	const struct engram_cuda_step *step, uint32_t layer)
{
	uint32_t cols =
		(params->max_ngram - params->min_ngram + 1) * params->num_heads;

	return (struct engram_lookup_args){
		.ids = step->ids ? step->ids + (size_t)layer * cols : NULL,
		.ids_token_stride = (int64_t)params->num_layers * cols,
		.ids_head_stride = 1,
		.num_tokens = batch->num_tokens,
		.head_begin = step->head_begin,
		.local_heads = step->local_heads,
		.total_heads = cols,
		.misses = step->misses,
	};
}

/* All that is wrong with it, before anything is launched. */
static enum engram_status check(const struct engram_hash_params *params,
				const struct engram_hash_batch *batch,
				const struct engram_cuda_step *step,
				struct engram_error *err)
{
	enum engram_status status = engram_check_hash(params, batch, err);

	if (status || !batch->num_tokens || !params->num_layers)
		return status;
	if (!step->ids)
		return engram_invalid(err, "ids", "NULL",
				      "pass room for [num_tokens, "
				      "num_layers, cols]");
	if (params->num_layers > 64 || batch->num_tokens > INT32_MAX ||
	    (uint64_t)batch->num_tokens * step->local_heads > UINT32_MAX)
		return engram_invalid(err, "num_layers, num_tokens",
				      "more than 64 layers or 2^32 rows",
				      "pass fewer at once");
	for (uint32_t i = 0; i < params->num_layers && !status; i++) {
		struct engram_lookup_args args =
			args_of(params, batch, step, i);

		status = lookup_check(&step->sources[i], &args, step->outs[i],
				      err);
	}
	return status;
}

static int fits_one_launch(const struct engram_hash_params *params,
			   const struct engram_hash_batch *batch,
			   const struct engram_cuda_step *step)
{
	if (params->num_layers > MAX_LAYERS || params->max_ngram > MAX_SHIFTS ||
	    batch->num_tokens > MAX_ROWS || !step->local_heads ||
	    (uint64_t)batch->num_tokens * step->local_heads *
			    params->num_layers >
		    MAX_ROWS)
		return 0;
	for (uint32_t i = 0; i < params->num_layers; i++) {
		struct engram_lookup_args args =
			args_of(params, batch, step, i);
		struct lookup_task task =
			lookup_task_of(&step->sources[i], &args);

		task.out = step->outs[i];
		if (lookup_make_plan(&task).path != PATH_256)
			return 0;
	}
	return 1;
}

static enum engram_status one_launch(const struct engram_hash_params *params,
				     const struct engram_hash_batch *batch,
				     const struct engram_cuda_step *step,
				     const struct engram_cuda_grid *grid,
				     engram_stream stream,
				     struct engram_error *err)
{
	struct step_task task = {};
	enum engram_status status;
	unsigned int blocks;

	task.params = *params;
	task.batch = *batch;
	task.head_begin = step->head_begin;
	task.local_heads = step->local_heads;
	task.rows = (uint32_t)batch->num_tokens * step->local_heads;
	task.misses = step->misses;
	task.rejects = (unsigned long long *)step->rejects;
	for (uint32_t i = 0; i < params->num_layers; i++)
		task.layers[i] = (struct step_layer){
			.rows = step->sources[i].rows,
			.descriptor = step->sources[i].descriptor,
			.multipliers = params->multipliers[i],
			.primes = params->primes[i],
			.offsets = params->offsets[i],
			.out = step->outs[i],
		};
	status = lookup_blocks(grid, step->sources[0].resident,
			       (int64_t)((task.rows + DEPTH - 1) / DEPTH) *
				       params->num_layers,
			       &blocks, err);
	if (status)
		return status;
	step_kernel<<<blocks, THREADS, 0, stream>>>(task);
	return engram_cuda_launched("hash and lookup kernel", err);
}

static enum engram_status one_by_one(const struct engram_hash_params *params,
				     const struct engram_hash_batch *batch,
				     const struct engram_cuda_step *step,
				     const struct engram_cuda_grid *grid,
				     engram_stream stream,
				     struct engram_error *err)
{
	enum engram_status status = engram_cuda_hash(
		params, batch, step->ids, step->rejects, stream, err);

	for (uint32_t i = 0; i < params->num_layers && !status; i++) {
		struct engram_lookup_args args =
			args_of(params, batch, step, i);

		status = engram_cuda_lookup(&step->sources[i], &args,
					    step->outs[i], grid, stream, err);
	}
	return status;
}

enum engram_status engram_cuda_hash_lookup(
	const struct engram_hash_params *params,
	const struct engram_hash_batch *batch,
	const struct engram_cuda_step *step,
	const struct engram_cuda_grid *grid, engram_stream stream,
	struct engram_error *err)
{
	enum engram_status status = check(params, batch, step, err);

	if (status || !batch->num_tokens)
		return status;
	if (batch->slot_cache && batch->slot_mapping)
		status = engram_cuda_write_slots(params, batch, step->rejects,
						 stream, err);
	if (status || !params->num_layers)
		return status;
	if (fits_one_launch(params, batch, step))
		return one_launch(params, batch, step, grid, stream, err);
	return one_by_one(params, batch, step, grid, stream, err);
}
