/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lookups that first find out what has to be fetched: neither what the cache
 * holds, nor any row twice.  How many rows that is, only the device knows: each
 * chunk is fetched by a kernel that does nothing if there are no rows in it,
 * and engramd's flag of such a chunk is set by the device itself.
 */
#include "check.h"
#include "device.h"
#include "gather_handle.h"
#include "launch.h"

#define FLAG_ROWS 2048 /* of a chunk, should all rows have to be fetched */
#define FLAGS	  16
/* Fewer are filled in faster than two streams part and meet. */
#define FORK_ROWS 8192
/* Rows between two looks at how many are fetched. */
#define WINDOW 65536

/* More than are looked up in one kernel: then it pays
 * (tests/bench/README.md). */
#define MIN_ROWS    (ENGRAM_CUDA_RING_CHUNK_ROWS * ENGRAM_RING_FLAGS + 1)
#define ENTRIES_MAX (UINT64_C(1) << 30)

/* ---- memory ---- */

struct layout {
	char *base;
	uint64_t size;
};

static void *place(struct layout *l, uint64_t bytes)
{
	uint64_t at = l->size;

	l->size += (bytes + ENGRAM_SIEVE_ALIGN - 1) / ENGRAM_SIEVE_ALIGN *
		   ENGRAM_SIEVE_ALIGN;
	return l->base ? l->base + at : NULL;
}

/* What is zeroed first; how much that is. */
static uint64_t place_all(struct engram_cuda_sieve *s, struct layout *l)
{
	uint64_t entries = (uint64_t)s->sets * ENGRAM_SIEVE_WAYS;
	uint64_t seen = (uint64_t)s->seen_mask + 1, zeroed;

	s->state = place(l, sizeof(*s->state));
	s->tags = place(l, entries * sizeof(*s->tags));
	s->uses = place(l, entries * sizeof(*s->uses));
	s->seen = place(l, seen * sizeof(*s->seen));
	zeroed = l->size;
	s->seen_number = place(l, seen * sizeof(*s->seen_number));
	s->wanted = place(l, (uint64_t)s->max_rows * sizeof(*s->wanted));
	s->where = place(l, (uint64_t)s->max_rows * sizeof(*s->where));
	s->records = place(l, (entries + s->max_rows) * s->record_stride);
	return zeroed;
}

static enum engram_status clear(const struct engram_cuda_gather *g, void *from,
				uint64_t bytes, struct engram_error *err)
{
	enum engram_status status =
		engram_cuda_status(cudaMemsetAsync(from, 0, bytes, g->side),
				   "clearing a cache: cudaMemsetAsync", err);

	return status ? status
		      : engram_cuda_status(cudaStreamSynchronize(g->side),
					   "cudaStreamSynchronize", err);
}

static enum engram_status check_params(
	const struct engram_cuda_gather *g,
	const struct engram_cuda_gather_params *p, uint64_t entries,
	struct engram_error *err)
{
	if (!p->cache_bytes)
		return ENGRAM_OK;
	if (g->table->placement == ENGRAM_CUDA_DEVICE)
		return engram_invalid(err, "cache_bytes",
				      "the rows are on the device already",
				      "give 0, or attach the table registered");
	if (entries < ENGRAM_SIEVE_WAYS || entries > ENTRIES_MAX)
		return engram_invalid(err, "cache_bytes",
				      "room for fewer than 8 rows, or for more "
				      "than 2^30",
				      "give 0 for none, or some 280 for each "
				      "row");
	return ENGRAM_OK;
}

enum engram_status cuda_gather_sieve_open(
	struct engram_cuda_gather *g, const struct engram_cuda_gather_params *p,
	struct engram_error *err)
{
	struct engram_cuda_sieve s = {
		.max_rows = g->ring->shape.max_rows,
		.record_stride = g->ring->row_stride,
		.told = &engram_ring_header(g->ring)->counts,
		.seen_mask = 1023,
	};
	uint64_t entries = p->cache_bytes / (s.record_stride + sizeof(*s.tags) +
					     sizeof(*s.uses));
	enum engram_status status = check_params(g, p, entries, err);
	struct layout layout = {0};
	uint64_t zeroed;

	if (status || (!p->cache_bytes && !p->deduplicate))
		return status;
	s.sets = (uint32_t)(entries / ENGRAM_SIEVE_WAYS);
	while (s.seen_mask < 2 * (uint64_t)s.max_rows)
		s.seen_mask = s.seen_mask * 2 + 1;
	place_all(&s, &layout);
	g->sieve_bytes = layout.size;
	status = engram_cuda_status(cudaMalloc(&g->sieve_memory, layout.size),
				    "room for a cache: cudaMalloc", err);
	if (status)
		return status;
	layout = (struct layout){.base = g->sieve_memory};
	zeroed = place_all(&s, &layout);
	status = clear(g, layout.base, zeroed, err);
	if (status)
		return status;
	g->sieve_min_rows = p->sieve_min_rows ? p->sieve_min_rows : MIN_ROWS;
	g->sieve = s;
	return ENGRAM_OK;
}

void cuda_gather_sieve_close(struct engram_cuda_gather *g)
{
	if (g->sieve_memory)
		engram_cuda_ignore(cudaFree(g->sieve_memory));
}

/* ---- what is to be expected ---- */

int64_t cuda_gather_expected(const struct engram_cuda_gather *g, int64_t rows)
{
	const struct engram_ring_counts *from = &g->seen[0], *to = &g->seen[1];
	uint64_t all = to->cache_lookups - from->cache_lookups;
	uint64_t found =
		to->cache_hits - from->cache_hits + to->repeats - from->repeats;

	if (!g->sieve.sets || !all || found > all)
		return rows;
	return rows - (int64_t)((double)rows * (double)found / (double)all);
}

/* The device tells its counts without being asked.  They are not of one moment:
 * good enough for a guess. */
static void look_back(struct engram_cuda_gather *g)
{
	const struct engram_ring_counts *told = g->sieve.told;
	struct engram_ring_counts now = {
		.cache_lookups =
			__atomic_load_n(&told->cache_lookups, __ATOMIC_RELAXED),
		.cache_hits =
			__atomic_load_n(&told->cache_hits, __ATOMIC_RELAXED),
		.repeats = __atomic_load_n(&told->repeats, __ATOMIC_RELAXED),
	};

	if (now.cache_lookups - g->seen[1].cache_lookups < WINDOW)
		return;
	g->seen[0] = g->seen[1];
	g->seen[1] = now;
}

/* ---- a lookup ---- */

struct sieved {
	struct engram_cuda_gather *g;
	const struct engram_cuda_ring *ring;
	struct engram_cuda_sieve_batch batch;
	int64_t rows;
	engram_stream stream;
};

static enum engram_status fetch(const struct sieved *l, int chunk,
				engram_stream stream, struct engram_error *err)
{
	return engram_cuda_sieve_fetch(&l->g->sieve, l->ring, &l->batch, chunk,
				       stream, err);
}

static enum engram_status end_side(const struct sieved *l,
				   struct engram_error *err)
{
	return engram_cuda_status(cudaEventRecord(l->g->join, l->g->side),
				  "cudaEventRecord", err);
}

static enum engram_status fetch_chunks(const struct sieved *l,
				       struct engram_error *err)
{
	enum engram_status status = ENGRAM_OK;

	for (uint32_t i = 0; i < l->batch.flags && !status; i++) {
		status = cuda_gather_wait(l->g, l->ring, i, l->stream, err);
		if (!status)
			status = fetch(l, (int)i, l->stream, err);
	}
	return status;
}

/* What is not posted on the side, while chunks come. */
static enum engram_status fetch_all(const struct sieved *l,
				    struct engram_error *err)
{
	enum engram_status status;

	if (!l->ring || !l->batch.own_ppt) {
		status = fetch(l, ENGRAM_SIEVE_OWN, l->stream, err);
		return status || !l->ring ? status : fetch_chunks(l, err);
	}
	status = cuda_gather_fork(l->g, l->stream, err);
	if (!status)
		status = fetch(l, ENGRAM_SIEVE_OWN, l->g->side, err);
	if (!status)
		status = end_side(l, err);
	if (!status)
		status = fetch_chunks(l, err);
	return status ? status : cuda_gather_join(l->g, l->stream, err);
}

static enum engram_status fill(const struct sieved *l, engram_stream stream,
			       struct engram_error *err)
{
	return engram_cuda_sieve_fill(&l->g->sieve, &l->batch, stream, err);
}

/* The cache takes rows beside the decode, or after one that is short. */
static enum engram_status decode(const struct sieved *l,
				 struct engram_error *err)
{
	int beside = l->g->sieve.sets && l->rows >= FORK_ROWS;
	enum engram_status status = ENGRAM_OK;

	if (beside)
		status = cuda_gather_fork(l->g, l->stream, err);
	if (!status && beside)
		status = fill(l, l->g->side, err);
	if (!status && beside)
		status = end_side(l, err);
	if (!status)
		status = engram_cuda_sieve_decode(&l->g->sieve, &l->batch,
						  l->stream, err);
	if (!status && beside)
		status = cuda_gather_join(l->g, l->stream, err);
	return status || beside ? status : fill(l, l->stream, err);
}

enum engram_status cuda_gather_sieve_lookup(
	struct engram_cuda_gather *g, const struct engram_cuda_ring *ring,
	const struct engram_cuda_ring_batch *batch, uint32_t layer,
	uint32_t own_ppt, engram_stream stream, struct engram_error *err)
{
	struct sieved l = {
		.g = g,
		.ring = ring,
		.batch = {.batch = *batch, .layer = layer, .own_ppt = own_ppt},
		.rows = batch->args->num_tokens * batch->args->local_heads,
		.stream = stream,
	};
	uint32_t flags = (uint32_t)l.rows / FLAG_ROWS;
	enum engram_status status;

	l.batch.flags = flags < 1 ? 1 : flags < FLAGS ? flags : FLAGS;
	look_back(g);
	status = engram_cuda_sieve(&g->sieve, ring, &l.batch, stream, err);
	if (!status)
		status = fetch_all(&l, err);
	return status ? status : decode(&l, err);
}
