/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"
#include "engram_segment.h"
#include "gather_handle.h"
#include "launch.h"

/* Batches up to this many rows are faster in one kernel that waits; larger
 * ones leave the device alone while they are gathered
 * (tests/bench/README.md). */
#define SMALL_ROWS	4096
#define SMALL_FLAG_ROWS 64
#define LARGE_FLAG_ROWS 12288 /* a copy and a wait each */

struct lookup {
	struct engram_cuda_gather *g;
	struct engram_cuda_ring ring;
	struct engram_lookup_args args;
	struct engram_cuda_ring_batch batch;
	uint32_t num_rows;
	uint16_t *out;
	engram_stream stream;
};

static struct engram_cuda_ring next_ring(struct engram_cuda_gather *g)
{
	uint32_t slot = g->next_slot++ % g->ring->shape.slots;

	return (struct engram_cuda_ring){
		.slot = engram_ring_slot(g->ring, slot),
		.ids = engram_ring_ids(g->ring, slot),
		.rows = engram_ring_row(g->ring, slot, 0),
		.row_stride = g->ring->row_stride,
		.state = g->states + slot,
		.counters = g->counters,
	};
}

static int is_small(const struct lookup *l)
{
	return l->num_rows <= SMALL_ROWS &&
	       engram_cuda_ring_can_lookup(&l->batch.source->rows);
}

static enum engram_status wait_and_copy(const struct lookup *l, uint32_t flag,
					struct engram_error *err)
{
	size_t stride = l->ring.row_stride;
	uint32_t begin = flag * l->batch.flag_rows;
	uint32_t left = l->num_rows - begin;
	uint32_t rows = left < l->batch.flag_rows ? left : l->batch.flag_rows;
	CUresult result;

	result = l->g->wait_value((CUstream)l->stream,
				  (CUdeviceptr)&l->ring.slot->flags[flag].value,
				  3, CU_STREAM_WAIT_VALUE_AND);
	if (result != CUDA_SUCCESS) {
		engram_error_set(err, ENGRAM_ECUDA,
				 "cuStreamWaitValue32: error %d", (int)result);
		return ENGRAM_ECUDA;
	}
	return engram_cuda_status(
		cudaMemcpyAsync(l->g->staging + begin * stride,
				l->ring.rows + begin * stride, rows * stride,
				cudaMemcpyHostToDevice, l->stream),
		"copying gathered rows: cudaMemcpyAsync", err);
}

/* The staged rows, as rows of a table. */
static struct engram_rows staged(const struct lookup *l)
{
	struct engram_rows rows = l->batch.source->rows;

	rows.codes = l->g->staging;
	rows.code_stride_bytes = l->ring.row_stride;
	if (rows.scale_scheme == ENGRAM_SCALE_UE8M0_BLOCK) {
		rows.scales = l->g->staging +
			      rows.dim * (rows.dtype == ENGRAM_BF16 ? 2u : 1u);
		rows.scale_stride_bytes = l->ring.row_stride;
	}
	return rows;
}

static enum engram_status lookup_large(const struct lookup *l,
				       struct engram_error *err)
{
	uint32_t flags = (l->num_rows - 1) / l->batch.flag_rows + 1;
	struct engram_rows rows = staged(l);
	enum engram_status status =
		engram_cuda_ring_post(&l->ring, &l->batch, l->stream, err);

	for (uint32_t i = 0; i < flags && !status; i++)
		status = wait_and_copy(l, i, err);
	if (!status)
		status = engram_cuda_decode(&rows, l->num_rows, l->out,
					    l->stream, err);
	if (!status)
		status = engram_cuda_ring_repair(&l->ring, &l->batch, l->out,
						 l->stream, err);
	return status;
}

/* A batch that fits into a slot. */
static enum engram_status lookup_host(struct lookup *l,
				      struct engram_error *err)
{
	uint32_t unit;

	l->num_rows = (uint32_t)(l->args.num_tokens * l->args.local_heads);
	if (!l->num_rows)
		return ENGRAM_OK;
	l->ring = next_ring(l->g);
	l->batch.args = &l->args;
	unit = is_small(l) ? SMALL_FLAG_ROWS : LARGE_FLAG_ROWS;
	l->batch.flag_rows = engram_ring_flag_rows(
		l->num_rows, (l->num_rows + unit - 1) / unit);
	if (is_small(l))
		return engram_cuda_ring_lookup(&l->ring, &l->batch, l->out,
					       l->stream, err);
	return lookup_large(l, err);
}

static enum engram_status lookup_parts(struct lookup *l, int64_t num_tokens,
				       struct engram_error *err)
{
	uint32_t heads = l->args.local_heads, dim = l->batch.source->rows.dim;
	int64_t most = l->g->ring->shape.max_rows / (heads ? heads : 1);
	enum engram_status status = ENGRAM_OK;

	if (!most)
		return engram_invalid(err, "max_rows",
				      "the ring does not hold one token",
				      "open the handle with more");
	for (int64_t at = 0, n; at < num_tokens && !status; at += n) {
		n = num_tokens - at < most ? num_tokens - at : most;
		l->args.num_tokens = n;
		status = lookup_host(l, err);
		l->args.ids += n * l->args.ids_token_stride;
		l->out += (size_t)n * heads * dim;
	}
	return status;
}

/* The last tokens over UVA on the side, the first ones as they are gathered. */
static enum engram_status lookup_hybrid(struct lookup *l, int64_t num_tokens,
					const struct engram_cuda_grid *grid,
					struct engram_error *err)
{
	struct engram_cuda_gather *g = l->g;
	int64_t own = (int64_t)((float)num_tokens * g->uva_share);
	int64_t first = num_tokens - own;
	struct engram_lookup_args args = l->args;
	size_t row = (size_t)args.local_heads * l->batch.source->rows.dim;
	enum engram_status status;

	if (!own)
		return lookup_parts(l, num_tokens, err);
	args.ids += first * args.ids_token_stride;
	args.num_tokens = own;
	status = engram_cuda_status(cudaEventRecord(g->fork, l->stream),
				    "cudaEventRecord", err);
	if (!status)
		status = engram_cuda_status(
			cudaStreamWaitEvent(g->side, g->fork, 0),
			"cudaStreamWaitEvent", err);
	if (!status)
		status = engram_cuda_lookup(l->batch.source, &args,
					    l->out + (size_t)first * row, grid,
					    g->side, err);
	if (!status)
		status = engram_cuda_status(cudaEventRecord(g->join, g->side),
					    "cudaEventRecord", err);
	if (!status)
		status = lookup_parts(l, first, err);
	if (!status)
		status = engram_cuda_status(
			cudaStreamWaitEvent(l->stream, g->join, 0),
			"cudaStreamWaitEvent", err);
	return status;
}

enum engram_cuda_path engram_cuda_gather_path(const engram_cuda_gather *gather,
					      int64_t num_rows)
{
	enum engram_cuda_path path = ENGRAM_PATH_HOST;

	for (uint32_t i = 0; i < gather->num_sizes; i++)
		if (i == 0 || num_rows >= gather->sizes[i])
			path = gather->paths[i];
	return path;
}

enum engram_status engram_cuda_gather_lookup(
	engram_cuda_gather *gather, uint32_t layer,
	const struct engram_cuda_lookup_params *params,
	enum engram_cuda_path path, uint16_t *out, engram_stream stream)
{
	engram_cuda_table *t = gather->table;
	struct lookup l = {.g = gather, .out = out, .stream = stream};
	struct engram_error err;
	enum engram_status status;

	status = cuda_begin_lookup(t, layer, params, &l.args);
	if (status)
		return status;
	if (path == ENGRAM_PATH_AUTO)
		path = engram_cuda_gather_path(
			gather, params->num_tokens * l.args.local_heads);
	if (path == ENGRAM_PATH_UVA)
		return engram_cuda_table_lookup(t, layer, params, out, stream);
	if (path != ENGRAM_PATH_HOST && path != ENGRAM_PATH_HYBRID) {
		engram_invalid(&err, "path", "unknown",
			       "use one of enum engram_cuda_path");
		return engram_set_last_error(&err);
	}
	l.batch = (struct engram_cuda_ring_batch){
		.source = &t->sources[layer],
		.layer_id = t->layers[layer].layer_id,
		.timeout_ns = gather->timeout_ns,
	};
	/* Should it fail, batches are refused, and read over UVA. */
	engram_gather_sync(gather->host);
	if (path == ENGRAM_PATH_HYBRID && t->placement != ENGRAM_CUDA_HOST)
		status = lookup_hybrid(&l, params->num_tokens, &params->grid,
				       &err);
	else
		status = lookup_parts(&l, params->num_tokens, &err);
	engram_gather_wake(gather->host);
	return status ? engram_set_last_error(&err) : ENGRAM_OK;
}
