/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "gather_handle.h"
#include "launch.h"

/*
 * Which path is faster for which size of a batch, on this machine as it is now:
 * each size a few times on each path, with random rows of the first layer, new
 * ones each time, the fastest of each path.
 */
#define REPEAT	      4
#define HYBRID_TOKENS 256 /* below, launching both takes longer than either */
static const int64_t sizes[CUDA_GATHER_SIZES] = {96,	768,   3072,
						 12288, 49152, 98304};

struct measure {
	struct engram_cuda_gather *g;
	cudaStream_t stream;
	cudaEvent_t begin, end;
	int32_t *host_ids, *ids; /* of the largest batch */
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

/* Milliseconds of one lookup. */
static enum engram_status time_one(struct measure *m, int64_t tokens,
				   enum engram_cuda_path path, float *ms,
				   struct engram_error *err)
{
	uint32_t cols = m->g->table->num_cols;
	const struct engram_cuda_lookup_params params = {
		.ids = m->ids,
		.ids_token_stride = cols,
		.ids_head_stride = 1,
		.num_tokens = tokens,
	};
	enum engram_status status;

	draw(m, tokens * cols);
	status = cuda_upload(m->ids, m->host_ids,
			     (uint64_t)tokens * cols * sizeof(*m->ids), err);
	if (!status)
		status =
			engram_cuda_status(cudaEventRecord(m->begin, m->stream),
					   "cudaEventRecord", err);
	if (status)
		return status;
	if (engram_cuda_gather_lookup(m->g, 0, &params, path, m->out,
				      m->stream)) {
		*err = *engram_last_error();
		return err->status;
	}
	status = engram_cuda_status(cudaEventRecord(m->end, m->stream),
				    "cudaEventRecord", err);
	if (!status)
		status = engram_cuda_status(cudaEventSynchronize(m->end),
					    "measuring: cudaEventSynchronize",
					    err);
	if (!status)
		status = engram_cuda_status(
			cudaEventElapsedTime(ms, m->begin, m->end),
			"cudaEventElapsedTime", err);
	return status;
}

static enum engram_status best_of(struct measure *m, int64_t tokens,
				  enum engram_cuda_path path, float *best,
				  struct engram_error *err)
{
	enum engram_status status = ENGRAM_OK;
	float ms = 0;

	*best = 1e9f;
	for (int i = 0; i < REPEAT && !status; i++) {
		status = time_one(m, tokens, path, &ms, err);
		/* the first wakes what sleeps */
		if (i && ms < *best)
			*best = ms;
	}
	return status;
}

/* Which is fastest for so many tokens?  The larger the batch, the truer the
 * share that the device reads itself of a hybrid lookup. */
static enum engram_status measure_size(struct measure *m, int64_t tokens,
				       enum engram_cuda_path *fastest,
				       struct engram_error *err)
{
	float uva = 0, host = 0, hybrid = 1e9f;
	enum engram_status status =
		best_of(m, tokens, ENGRAM_PATH_UVA, &uva, err);

	if (!status)
		status = best_of(m, tokens, ENGRAM_PATH_HOST, &host, err);
	if (status)
		return status;
	m->g->uva_share = host / (uva + host);
	if (tokens >= HYBRID_TOKENS)
		status = best_of(m, tokens, ENGRAM_PATH_HYBRID, &hybrid, err);
	*fastest = host < uva ? ENGRAM_PATH_HOST : ENGRAM_PATH_UVA;
	if (hybrid < host && hybrid < uva)
		*fastest = ENGRAM_PATH_HYBRID;
	return status;
}

static enum engram_status measure_sizes(struct measure *m, int64_t most,
					struct engram_error *err)
{
	struct engram_cuda_gather *g = m->g;
	uint32_t heads = g->table->layers[0].shard.local_heads;
	enum engram_status status = ENGRAM_OK;

	for (uint32_t i = 0; i < CUDA_GATHER_SIZES && !status; i++) {
		int64_t tokens = sizes[i] / heads;

		if (!tokens || tokens * heads > most)
			continue;
		g->sizes[g->num_sizes] = tokens * heads;
		status = measure_size(m, tokens, &g->paths[g->num_sizes], err);
		g->num_sizes++;
	}
	return status;
}

/* What it counts and what it finds missing is not the caller's. */
static enum engram_status clear_counters(struct measure *m,
					 struct engram_error *err)
{
	static const struct engram_cuda_ring_counters zeros;

	return cuda_upload(m->g->counters, &zeros, sizeof(zeros), err);
}

static enum engram_status make(struct measure *m, int64_t most,
			       struct engram_error *err)
{
	const struct engram_cuda_table *t = m->g->table;
	size_t ids = (size_t)most / t->layers[0].shard.local_heads *
		     t->num_cols * sizeof(*m->ids);
	size_t out = (size_t)most * t->layers[0].rows.dim * sizeof(*m->out);
	enum engram_status status;

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
	most = most < sizes[CUDA_GATHER_SIZES - 1]
		       ? most
		       : sizes[CUDA_GATHER_SIZES - 1];
	status = make(&m, most, err);
	if (!status)
		status = measure_sizes(&m, most, err);
	if (!status)
		status = clear_counters(&m, err);
	unmake(&m);
	return status;
}
