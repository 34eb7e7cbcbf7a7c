/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"
#include "engram_row_math.h"
#include "engram_segment.h"
#include "gather_handle.h"
#include "launch.h"

/* Batches of which engramd gathers up to this many rows are faster in one
 * kernel that waits; larger ones leave the device alone while they are gathered
 * (tests/bench/README.md). */
#define SMALL_ROWS (ENGRAM_CUDA_RING_CHUNK_ROWS * ENGRAM_RING_FLAGS)
/* Rows of a chunk of a large batch, whose tail is the copy of one; but each is
 * a wait, a copy and a launch. */
#define LARGE_FLAG_MIN 2048
#define LARGE_FLAG_MAX 8192
#define LARGE_FLAGS    16
/* Where tiles of scales end: parts of a batch are whole tiles. */
#define TILE_TOKENS 128

struct lookup {
	struct engram_cuda_gather *g;
	struct engram_cuda_ring ring;
	struct engram_lookup_args args;
	struct engram_cuda_ring_batch batch;
	const struct engram_cuda_grid *grid;
	uint32_t own_ppt; /* thousandths that the device reads itself */
	uint32_t layer;
	int sieved;
	engram_stream stream;
};

struct engram_cuda_ring cuda_gather_slot(struct engram_cuda_gather *g,
					 uint32_t slot)
{
	struct engram_cuda_ring ring = {
		.slot = engram_ring_slot(g->ring, slot),
		.ids = engram_ring_ids(g->ring, slot),
		.rows = engram_ring_row(g->ring, slot, 0),
		.row_stride = g->ring->row_stride,
		.counts = &engram_ring_header(g->ring)->counts,
		.state = g->states + slot,
		.counters = g->counters,
	};

	if (!g->rescue.base)
		return ring;
	ring.rescue = engram_ring_slot(&g->rescue, slot);
	ring.rescue_ids = engram_ring_ids(&g->rescue, slot);
	ring.rescue_rows = engram_ring_row(&g->rescue, slot, 0);
	return ring;
}

static int64_t rows_of(const struct lookup *l, int64_t tokens)
{
	return tokens * l->args.local_heads;
}

/* ---- which way ---- */

static int is_sieved(const struct engram_cuda_gather *g, int64_t rows)
{
	return g->sieve.records && rows >= g->sieve_min_rows;
}

const struct engram_ring_choice *cuda_gather_choice(
	const struct engram_cuda_gather *g, int64_t num_rows)
{
	const struct engram_ring_choice *best = NULL;

	if (is_sieved(g, num_rows))
		num_rows = cuda_gather_expected(g, num_rows);
	/* sizes are twice as large each: the nearer one, as a factor */
	for (uint32_t i = 0; i < g->num_choices; i++)
		if (!best || num_rows * num_rows >=
				     (int64_t)best->rows * g->choices[i].rows)
			best = &g->choices[i];
	return best;
}

enum engram_cuda_path engram_cuda_gather_path(const engram_cuda_gather *gather,
					      int64_t num_rows)
{
	const struct engram_ring_choice *choice =
		cuda_gather_choice(gather, num_rows);

	return choice ? (enum engram_cuda_path)choice->path : ENGRAM_PATH_HOST;
}

int cuda_gather_is_small(const struct engram_cuda_source *source, int64_t rows)
{
	return rows <= SMALL_ROWS && engram_cuda_ring_can_lookup(&source->rows);
}

/* The more rows, the more there is to do for each chunk while the next ones
 * come; few rows are spread over all of engramd's threads. */
uint32_t cuda_gather_flag_rows(int64_t rows, int small)
{
	uint32_t n = (uint32_t)rows, least, flags = n / LARGE_FLAG_MAX;

	if (!small) {
		n = engram_ring_flag_rows(n, flags > LARGE_FLAGS ? flags
								 : LARGE_FLAGS);
		return n > LARGE_FLAG_MIN ? n : LARGE_FLAG_MIN;
	}
	least = engram_ring_flag_rows(n, ENGRAM_RING_FLAGS);
	n = rows <= 192 ? 8 : rows <= 1024 ? 16 : rows <= 2048 ? 24 : 32;
	return n > least ? n : least;
}

/* ---- a part of a batch, in a slot ---- */

enum engram_status cuda_gather_wait(const struct engram_cuda_gather *g,
				    const struct engram_cuda_ring *ring,
				    uint32_t chunk, engram_stream stream,
				    struct engram_error *err)
{
	CUresult result;

	result = g->wait_value((CUstream)stream,
			       (CUdeviceptr)&ring->slot->flags[chunk].value, 3,
			       CU_STREAM_WAIT_VALUE_AND);
	if (result == CUDA_SUCCESS)
		return ENGRAM_OK;
	engram_error_set(err, ENGRAM_ECUDA, "cuStreamWaitValue32: error %d",
			 (int)result);
	return ENGRAM_ECUDA;
}

static enum engram_status wait_and_copy(const struct engram_cuda_gather *g,
					const struct engram_cuda_ring *ring,
					uint32_t flag_rows, uint32_t begin,
					uint32_t rows, engram_stream stream,
					struct engram_error *err)
{
	size_t stride = ring->row_stride;
	enum engram_status status =
		cuda_gather_wait(g, ring, begin / flag_rows, stream, err);

	if (status)
		return status;
	return engram_cuda_status(
		cudaMemcpyAsync(g->staging + begin * stride,
				ring->rows + begin * stride, rows * stride,
				cudaMemcpyHostToDevice, stream),
		"copying gathered rows: cudaMemcpyAsync", err);
}

enum engram_status cuda_gather_fetch_large(
	struct engram_cuda_gather *g, const struct engram_cuda_ring *ring,
	const struct engram_cuda_ring_batch *batch, engram_stream stream,
	struct engram_error *err)
{
	uint32_t rows =
		(uint32_t)(batch->args->num_tokens * batch->args->local_heads);
	enum engram_status status = ENGRAM_OK;

	for (uint32_t at = 0, n; at < rows && !status; at += n) {
		n = rows - at < batch->flag_rows ? rows - at : batch->flag_rows;
		status = wait_and_copy(g, ring, batch->flag_rows, at, n, stream,
				       err);
		if (!status)
			status = engram_cuda_ring_decode(ring, batch,
							 g->staging, at, at + n,
							 stream, err);
	}
	if (!status)
		status = engram_cuda_ring_repair(ring, batch, stream, err);
	return status;
}

/* Rows that the device reads itself in the one kernel of a small batch. */
static int64_t own_rows(const struct lookup *l)
{
	return rows_of(l, l->args.num_tokens) * l->own_ppt / 1000;
}

static int is_small(const struct lookup *l)
{
	return cuda_gather_is_small(
		l->batch.source, rows_of(l, l->args.num_tokens) - own_rows(l));
}

static enum engram_status lookup_slot(struct lookup *l,
				      struct engram_error *err)
{
	struct engram_cuda_gather *g = l->g;
	int64_t rows = rows_of(l, l->args.num_tokens);
	int small = is_small(l);
	enum engram_status status;

	if (l->sieved && l->own_ppt >= 1000)
		return cuda_gather_sieve_lookup(g, NULL, &l->batch, l->layer,
						l->own_ppt, l->stream, err);
	l->ring = cuda_gather_slot(g, g->next_slot++ % g->slots);
	if (l->sieved)
		return cuda_gather_sieve_lookup(g, &l->ring, &l->batch,
						l->layer, l->own_ppt, l->stream,
						err);
	l->batch.own_rows = small ? own_rows(l) : 0;
	l->batch.flag_rows =
		cuda_gather_flag_rows(rows - l->batch.own_rows, small);
	if (small)
		return engram_cuda_ring_lookup(&l->ring, &l->batch, l->stream,
					       err);
	status = engram_cuda_ring_post(&l->ring, &l->batch, l->stream, err);
	if (!status)
		status = cuda_gather_fetch_large(g, &l->ring, &l->batch,
						 l->stream, err);
	return status;
}

/* ---- parts and shares of a batch ---- */

static void advance(struct lookup *l, int64_t tokens)
{
	const struct engram_rows *rows = &l->batch.source->rows;
	uint32_t heads = l->args.local_heads;
	size_t codes = (size_t)rows_of(l, tokens) * rows->dim;

	l->args.ids += tokens * l->args.ids_token_stride;
	if (l->batch.out) {
		l->batch.out += codes;
		return;
	}
	l->batch.raw.codes += codes * (rows->dtype == ENGRAM_BF16 ? 2 : 1);
	if (l->batch.raw.scales)
		l->batch.raw.scales += engram_raw_scale_bytes(
			rows, tokens, heads, l->batch.raw.scale_layout);
}

/* So many tokens, or fewer, so that a part ends where a tile of scales does. */
static int64_t whole_tiles(const struct lookup *l, int64_t tokens)
{
	if (l->batch.out || !l->batch.raw.scales ||
	    l->batch.raw.scale_layout == ENGRAM_SCALES_PLAIN)
		return tokens;
	return tokens / TILE_TOKENS * TILE_TOKENS;
}

static enum engram_status lookup_parts(struct lookup *l, int64_t num_tokens,
				       struct engram_error *err)
{
	uint32_t heads = l->args.local_heads;
	int64_t most = l->g->ring->shape.max_rows / (heads ? heads : 1);
	enum engram_status status = ENGRAM_OK;

	if (num_tokens > most)
		most = whole_tiles(l, most);
	if (!most)
		return engram_invalid(err, "max_rows",
				      "the ring does not hold one token, or "
				      "one tile of scales",
				      "open the handle with more");
	for (int64_t at = 0, n; at < num_tokens && !status; at += n) {
		n = num_tokens - at < most ? num_tokens - at : most;
		l->args.num_tokens = n;
		if (rows_of(l, n))
			status = lookup_slot(l, err);
		advance(l, n);
	}
	return status;
}

static enum engram_status lookup_uva(const struct lookup *l,
				     engram_stream stream,
				     struct engram_error *err)
{
	if (l->batch.out)
		return engram_cuda_lookup(l->batch.source, &l->args,
					  l->batch.out, l->grid, stream, err);
	return engram_cuda_lookup_raw(l->batch.source, &l->args, &l->batch.raw,
				      l->grid, stream, err);
}

enum engram_status cuda_gather_fork(const struct engram_cuda_gather *g,
				    engram_stream stream,
				    struct engram_error *err)
{
	enum engram_status status = engram_cuda_status(
		cudaEventRecord(g->fork, stream), "cudaEventRecord", err);

	return status ? status
		      : engram_cuda_status(
				cudaStreamWaitEvent(g->side, g->fork, 0),
				"cudaStreamWaitEvent", err);
}

enum engram_status cuda_gather_join(const struct engram_cuda_gather *g,
				    engram_stream stream,
				    struct engram_error *err)
{
	return engram_cuda_status(cudaStreamWaitEvent(stream, g->join, 0),
				  "cudaStreamWaitEvent", err);
}

/* The last tokens over UVA on the side, the first ones as they are gathered. */
static enum engram_status lookup_beside(struct lookup *l, int64_t num_tokens,
					struct engram_error *err)
{
	struct engram_cuda_gather *g = l->g;
	int64_t own = num_tokens * l->own_ppt / 1000;
	int64_t first = whole_tiles(l, num_tokens - own);
	struct lookup last = *l;
	enum engram_status status;

	l->own_ppt = 0;
	if (first == num_tokens)
		return lookup_parts(l, num_tokens, err);
	last.batch.args = &last.args;
	advance(&last, first);
	last.args.num_tokens = num_tokens - first;
	status = cuda_gather_fork(g, l->stream, err);
	if (!status)
		status = lookup_uva(&last, g->side, err);
	if (!status)
		status = engram_cuda_status(cudaEventRecord(g->join, g->side),
					    "cudaEventRecord", err);
	if (!status)
		status = lookup_parts(l, first, err);
	return status ? status : cuda_gather_join(g, l->stream, err);
}

/* What fills up the tiles of scales. */
static enum engram_status clear_scales(const struct lookup *l,
				       int64_t num_tokens,
				       struct engram_error *err)
{
	const struct engram_raw_out *raw = &l->batch.raw;
	size_t bytes;

	if (l->batch.out || !raw->scales ||
	    raw->scale_layout == ENGRAM_SCALES_PLAIN)
		return ENGRAM_OK;
	bytes = engram_raw_scale_bytes(&l->batch.source->rows, num_tokens,
				       l->args.local_heads, raw->scale_layout);
	return engram_cuda_status(
		cudaMemsetAsync(raw->scales, 0, bytes, l->stream),
		"clearing scales: cudaMemsetAsync", err);
}

static enum engram_status lookup(struct lookup *l, int64_t num_tokens,
				 enum engram_cuda_path path,
				 struct engram_error *err)
{
	const struct engram_ring_choice *choice =
		cuda_gather_choice(l->g, rows_of(l, num_tokens));
	enum engram_status status = clear_scales(l, num_tokens, err);

	if (status)
		return status;
	if (path == ENGRAM_PATH_HYBRID && choice &&
	    l->g->table->placement != ENGRAM_CUDA_HOST)
		l->own_ppt = choice->own_ppt;
	if (path == ENGRAM_PATH_UVA)
		l->own_ppt = 1000;
	l->args.num_tokens = num_tokens;
	/* over UVA alone repeated rows cost next to nothing */
	l->sieved = is_sieved(l->g, rows_of(l, num_tokens)) &&
		    (l->g->sieve.sets || l->own_ppt < 1000);
	if (l->sieved)
		return lookup_parts(l, num_tokens, err);
	if (l->own_ppt >= 1000)
		return lookup_uva(l, l->stream, err);
	if (l->own_ppt && !is_small(l))
		return lookup_beside(l, num_tokens, err);
	return lookup_parts(l, num_tokens, err);
}

/* ---- the interface ---- */

static enum engram_status lookup_by(
	engram_cuda_gather *gather, uint32_t layer,
	const struct engram_cuda_lookup_params *params,
	enum engram_cuda_path path, struct lookup *l)
{
	engram_cuda_table *t = gather->table;
	struct engram_error err;
	enum engram_status status;
	int uva;

	status = cuda_begin_lookup(t, layer, params, &l->args);
	if (status)
		return status;
	if (path == ENGRAM_PATH_AUTO)
		path = engram_cuda_gather_path(
			gather, params->num_tokens * l->args.local_heads);
	/* by a device that can, unless there is a cache to look into */
	uva = path == ENGRAM_PATH_UVA &&
	      (!gather->sieve.sets || t->placement == ENGRAM_CUDA_HOST ||
	       !is_sieved(gather, params->num_tokens * l->args.local_heads));
	if (uva && l->batch.out)
		return engram_cuda_table_lookup(t, layer, params, l->batch.out,
						l->stream);
	if (uva)
		return engram_cuda_table_lookup_raw(t, layer, params,
						    &l->batch.raw, l->stream);
	if (path != ENGRAM_PATH_UVA && path != ENGRAM_PATH_HOST &&
	    path != ENGRAM_PATH_HYBRID) {
		engram_invalid(&err, "path", "unknown",
			       "use one of enum engram_cuda_path");
		return engram_set_last_error(&err);
	}
	l->g = gather;
	l->layer = layer;
	l->grid = &params->grid;
	l->batch.source = &t->sources[layer];
	l->batch.args = &l->args;
	l->batch.layer_id = t->layers[layer].layer_id;
	l->batch.timeout_ns = gather->timeout_ns;
	/* Should it fail, batches are refused, and read over UVA. */
	engram_gather_sync(gather->host);
	status = lookup(l, params->num_tokens, path, &err);
	engram_gather_wake(gather->host);
	return status ? engram_set_last_error(&err) : ENGRAM_OK;
}

enum engram_status engram_cuda_gather_lookup(
	engram_cuda_gather *gather, uint32_t layer,
	const struct engram_cuda_lookup_params *params,
	enum engram_cuda_path path, uint16_t *out, engram_stream stream)
{
	struct lookup l = {.stream = stream, .batch.out = out};
	struct engram_error err;

	if (!out && params->num_tokens) {
		engram_invalid(&err, "out", "NULL", "pass it, or zero tokens");
		return engram_set_last_error(&err);
	}
	return lookup_by(gather, layer, params, path, &l);
}

enum engram_status engram_cuda_gather_lookup_raw(
	engram_cuda_gather *gather, uint32_t layer,
	const struct engram_cuda_lookup_params *params,
	enum engram_cuda_path path, const struct engram_raw_out *out,
	engram_stream stream)
{
	struct lookup l = {.stream = stream, .batch.raw = *out};

	return lookup_by(gather, layer, params, path, &l);
}
