/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "gather_handle.h"
#include "launch.h"

/*
 * Which path is faster for which size of a batch, on this machine as it is now:
 * each size on each path, with random rows of the first layer, new ones in each
 * lookup.  A lookup that is not timed keeps the device busy meanwhile, so that
 * those that are stand in the stream before the first of them runs: what they
 * take is the device's and engramd's time, and not that of the calls.  (To hold
 * the stream until the calls are made would hang where a call, or another
 * thread's, waits for the device: kernels are loaded when they first run.)
 */
#define ROWS_FIRST  24
#define ROWS_LAST   98304
#define QUEUED	    6 /* lookups at a time; of large batches, */
#define QUEUED_MIN  2 /* so many */
#define QUEUED_ROWS 49152
#define ROUNDS	    2	  /* the faster counts; and one to warm up */
#define HEAD_ROWS   12288 /* over UVA: half a millisecond */
#define SHARES	    3	  /* of a hybrid lookup that are tried */

struct measure {
	struct engram_cuda_gather *g;
	cudaStream_t stream;
	cudaEvent_t begin, end;
	int32_t *host_ids, *ids; /* of all that is queued; first, of */
	int64_t head_tokens;	 /* those that are not timed */
	uint16_t *out;
	uint64_t random;
};

static void draw(struct measure *m, int64_t count)
{
	const struct engram_shard *s = &m->g->table->layers[0].shard;
	uint64_t rows = (uint64_t)(s->row_end - s->row_begin);

	for (int64_t i = 0; i < count; i++) {
		m->random =
			m->random * 6364136223846793005u + 1442695040888963407u;
		m->host_ids[i] = (int32_t)((uint64_t)s->row_begin +
					   (m->random >> 20) % rows);
	}
}

static uint32_t queued(int64_t rows)
{
	return rows < QUEUED_ROWS ? QUEUED : QUEUED_MIN;
}

static enum engram_status keep_busy(struct measure *m, struct engram_error *err)
{
	const struct engram_cuda_lookup_params params = {
		.ids = m->ids,
		.ids_token_stride = m->g->table->num_cols,
		.ids_head_stride = 1,
		.num_tokens = m->head_tokens,
	};

	if (!engram_cuda_table_lookup(m->g->table, 0, &params, m->out,
				      m->stream))
		return ENGRAM_OK;
	*err = *engram_last_error();
	return err->status;
}

static enum engram_status enqueue(struct measure *m, int64_t tokens,
				  uint32_t count, enum engram_cuda_path path,
				  struct engram_error *err)
{
	uint32_t cols = m->g->table->num_cols;
	struct engram_cuda_lookup_params params = {
		.ids = m->ids + m->head_tokens * cols,
		.ids_token_stride = cols,
		.ids_head_stride = 1,
		.num_tokens = tokens,
	};
	enum engram_status status = keep_busy(m, err);

	if (!status)
		status =
			engram_cuda_status(cudaEventRecord(m->begin, m->stream),
					   "cudaEventRecord", err);
	for (uint32_t i = 0; i < count && !status; i++) {
		if (engram_cuda_gather_lookup(m->g, 0, &params, path, m->out,
					      m->stream)) {
			*err = *engram_last_error();
			return err->status;
		}
		params.ids += tokens * cols;
	}
	return status ? status
		      : engram_cuda_status(cudaEventRecord(m->end, m->stream),
					   "cudaEventRecord", err);
}

/* Nanoseconds of a lookup, on average of a few. */
static enum engram_status time_some(struct measure *m, int64_t tokens,
				    enum engram_cuda_path path, uint32_t *ns,
				    struct engram_error *err)
{
	const struct engram_cuda_table *t = m->g->table;
	uint32_t count = queued(tokens * t->layers[0].shard.local_heads);
	int64_t ids = (m->head_tokens + tokens * count) * t->num_cols;
	enum engram_status status;
	float ms = 0;

	draw(m, ids);
	status = cuda_upload(m->ids, m->host_ids,
			     (uint64_t)ids * sizeof(*m->ids), err);
	if (status)
		return status;
	engram_gather_wake(m->g->host);
	status = enqueue(m, tokens, count, path, err);
	if (!status)
		status = engram_cuda_status(cudaEventSynchronize(m->end),
					    "measuring: cudaEventSynchronize",
					    err);
	if (!status)
		status = engram_cuda_status(
			cudaEventElapsedTime(&ms, m->begin, m->end),
			"cudaEventElapsedTime", err);
	*ns = (uint32_t)(ms * 1e6f / (float)count);
	return status;
}

static enum engram_status best_of(struct measure *m, int64_t tokens,
				  enum engram_cuda_path path, uint32_t *best,
				  struct engram_error *err)
{
	enum engram_status status = ENGRAM_OK;
	uint32_t ns = 0;

	*best = UINT32_MAX;
	for (int i = 0; i <= ROUNDS && !status; i++) {
		status = time_some(m, tokens, path, &ns, err);
		if (i && ns < *best)
			*best = ns;
	}
	return status;
}

/* Shares of the rows for the device: what it could read by itself in the time
 * of the other, or less, since both disturb each other. */
static enum engram_status measure_shares(struct measure *m, int64_t tokens,
					 struct engram_ring_choice *c,
					 struct engram_error *err)
{
	uint64_t both = (uint64_t)c->uva_ns + c->host_ns;
	uint32_t even = (uint32_t)(UINT64_C(1000) * c->host_ns / both);
	uint32_t best = 0, ns = 0;
	enum engram_status status = ENGRAM_OK;

	c->hybrid_ns = UINT32_MAX;
	for (uint32_t i = 0; i < SHARES && !status; i++) {
		c->own_ppt = even * (5 + 2 * i) / 10;
		status = best_of(m, tokens, ENGRAM_PATH_HYBRID, &ns, err);
		if (ns < c->hybrid_ns) {
			c->hybrid_ns = ns;
			best = c->own_ppt;
		}
	}
	c->own_ppt = best;
	return status;
}

/* Hybrid is the best proportion, be it that of one path alone. */
static void choose(struct engram_ring_choice *c)
{
	c->path = c->host_ns < c->uva_ns ? ENGRAM_PATH_HOST : ENGRAM_PATH_UVA;
	if (c->hybrid_ns < c->host_ns && c->hybrid_ns < c->uva_ns)
		c->path = ENGRAM_PATH_HYBRID;
	else
		c->own_ppt = c->path == ENGRAM_PATH_HOST ? 0 : 1000;
}

static enum engram_status measure_size(struct measure *m, int64_t tokens,
				       struct engram_ring_choice *c,
				       struct engram_error *err)
{
	enum engram_status status =
		best_of(m, tokens, ENGRAM_PATH_UVA, &c->uva_ns, err);

	if (!status)
		status = best_of(m, tokens, ENGRAM_PATH_HOST, &c->host_ns, err);
	if (!status)
		status = measure_shares(m, tokens, c, err);
	if (!status)
		choose(c);
	return status;
}

static enum engram_status measure_sizes(struct measure *m, int64_t most,
					struct engram_error *err)
{
	struct engram_cuda_gather *g = m->g;
	uint32_t heads = g->table->layers[0].shard.local_heads;
	enum engram_status status = ENGRAM_OK;

	for (int64_t rows = ROWS_FIRST; rows <= most && !status; rows *= 2) {
		struct engram_ring_choice *c = &g->choices[g->num_choices];
		int64_t tokens = rows / heads;

		if (!tokens)
			continue;
		c->rows = (uint32_t)(tokens * heads);
		/* the choice of a size counts while it is measured */
		g->num_choices++;
		status = measure_size(m, tokens, c, err);
	}
	if (!status)
		memcpy(engram_ring_header(g->ring)->choices, g->choices,
		       sizeof(g->choices));
	return status;
}

/* What it counts and what it finds missing is not the caller's. */
static enum engram_status clear_counters(struct measure *m,
					 struct engram_error *err)
{
	static const struct engram_cuda_ring_counters zeros;

	memset(&engram_ring_header(m->g->ring)->counts, 0,
	       sizeof(struct engram_ring_counts));
	return cuda_upload(m->g->counters, &zeros, sizeof(zeros), err);
}

static enum engram_status make(struct measure *m, int64_t most,
			       struct engram_error *err)
{
	const struct engram_cuda_table *t = m->g->table;
	uint32_t heads = t->layers[0].shard.local_heads;
	int64_t rows = most * QUEUED_MIN > QUEUED_ROWS * QUEUED
			       ? most * QUEUED_MIN
			       : QUEUED_ROWS * QUEUED;
	size_t ids = ((size_t)rows + HEAD_ROWS) / heads * t->num_cols *
		     sizeof(*m->ids);
	size_t out = (size_t)most * t->layers[0].rows.dim * sizeof(*m->out);
	enum engram_status status;

	m->head_tokens = (most < HEAD_ROWS ? most : HEAD_ROWS) / heads;
	m->host_ids = malloc(ids);
	if (!m->host_ids)
		return engram_error_set(err, ENGRAM_ENOMEM,
					"no memory for %zu bytes of ids", ids);
	status = engram_cuda_status(
		cudaStreamCreateWithFlags(&m->stream, cudaStreamNonBlocking),
		"cudaStreamCreateWithFlags", err);
	if (!status)
		status = engram_cuda_status(cudaEventCreate(&m->begin),
					    "cudaEventCreate", err);
	if (!status)
		status = engram_cuda_status(cudaEventCreate(&m->end),
					    "cudaEventCreate", err);
	if (!status)
		status = engram_cuda_status(cudaMalloc((void **)&m->ids, ids),
					    "cudaMalloc", err);
	if (!status)
		status = engram_cuda_status(cudaMalloc((void **)&m->out, out),
					    "cudaMalloc", err);
	return status;
}

static void unmake(struct measure *m)
{
	/* what was queued before an error reads what is freed here */
	if (m->stream)
		engram_cuda_ignore(cudaStreamSynchronize(m->stream));
	if (m->out)
		engram_cuda_ignore(cudaFree(m->out));
	if (m->ids)
		engram_cuda_ignore(cudaFree(m->ids));
	if (m->end)
		engram_cuda_ignore(cudaEventDestroy(m->end));
	if (m->begin)
		engram_cuda_ignore(cudaEventDestroy(m->begin));
	if (m->stream)
		engram_cuda_ignore(cudaStreamDestroy(m->stream));
	free(m->host_ids);
}

enum engram_status cuda_gather_measure(struct engram_cuda_gather *g,
				       struct engram_error *err)
{
	const struct engram_shard *shard = &g->table->layers[0].shard;
	struct measure m = {.g = g, .random = 88172645463325252u};
	int64_t most = g->ring->shape.max_rows;
	enum engram_status status;

	if (shard->row_begin == shard->row_end)
		return ENGRAM_OK;
	most = most < ROWS_LAST ? most : ROWS_LAST;
	status = make(&m, most, err);
	if (!status)
		status = measure_sizes(&m, most, err);
	if (!status)
		status = clear_counters(&m, err);
	unmake(&m);
	return status;
}
