/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lookups through a sieve, twice: what the first one fetched, a third of it by
 * the device itself, the second one finds in a cache that has room for all of
 * it, or fetches again.
 */
#include <stdio.h>
#include <stdlib.h>

#include "engram_cuda_sieve.h"
#include "engram_ring.h"
#include "shim_parts.h"

#define FLAGS	6
#define OWN_PPT 333
#define AT_ONCE 1 /* sets for each row of the batch */

static void *zeroed(size_t bytes)
{
	void *memory;

	SHIM_CUDA(cudaMalloc(&memory, bytes));
	SHIM_CUDA(cudaMemset(memory, 0, bytes));
	return memory;
}

static struct engram_cuda_sieve make(const struct engram_ring *client,
				     uint32_t rows)
{
	struct engram_cuda_sieve s = {
		.sets = AT_ONCE * rows,
		.max_rows = rows,
		.seen_mask = 1023,
		.record_stride = client->row_stride,
		.told = &engram_ring_header(client)->counts,
	};
	size_t entries = (size_t)s.sets * ENGRAM_SIEVE_WAYS;

	while (s.seen_mask < 2 * rows)
		s.seen_mask = 2 * s.seen_mask + 1;
	s.state = zeroed(sizeof(*s.state));
	s.tags = zeroed(entries * sizeof(*s.tags));
	s.uses = zeroed(entries * sizeof(*s.uses));
	s.seen = zeroed((s.seen_mask + 1) * sizeof(*s.seen));
	s.seen_number = zeroed((s.seen_mask + 1) * sizeof(*s.seen_number));
	s.wanted = zeroed(rows * sizeof(*s.wanted));
	s.where = zeroed(rows * sizeof(*s.where));
	s.records = zeroed((entries + rows) * s.record_stride);
	return s;
}

static void unmake(const struct engram_cuda_sieve *s)
{
	SHIM_CUDA(cudaFree(s->state));
	SHIM_CUDA(cudaFree(s->tags));
	SHIM_CUDA(cudaFree(s->uses));
	SHIM_CUDA(cudaFree(s->seen));
	SHIM_CUDA(cudaFree(s->seen_number));
	SHIM_CUDA(cudaFree(s->wanted));
	SHIM_CUDA(cudaFree(s->where));
	SHIM_CUDA(cudaFree(s->records));
}

/* What the stream does in the client. */
static enum engram_status once(const struct engram_cuda_sieve *s,
			       const struct engram_ring *client,
			       const struct engram_cuda_ring *ring,
			       const struct engram_cuda_sieve_batch *b,
			       uint32_t seq, cudaStream_t stream,
			       struct engram_error *err)
{
	enum engram_status status = engram_cuda_sieve(s, ring, b, stream, err);

	if (!status)
		status = engram_cuda_sieve_fetch(s, ring, b, ENGRAM_SIEVE_OWN,
						 stream, err);
	SHIM_CUDA(cudaStreamSynchronize(stream));
	for (uint32_t i = 0; i < b->flags && !status; i++) {
		/* from a thread of this process: it comes */
		engram_ring_await(client, 0, i, seq, UINT64_MAX);
		status = engram_cuda_sieve_fetch(s, ring, b, (int)i, stream,
						 err);
	}
	if (!status)
		status = engram_cuda_sieve_decode(s, b, stream, err);
	if (!status)
		status = engram_cuda_sieve_fill(s, b, stream, err);
	SHIM_CUDA(cudaStreamSynchronize(stream));
	return status;
}

enum engram_status shim_sieve_lookup(const struct engram_ring *client,
				     const struct engram_cuda_ring *ring,
				     const struct engram_cuda_ring_batch *batch,
				     uint32_t rows, cudaStream_t stream,
				     struct engram_error *err)
{
	struct engram_cuda_sieve_batch b = {.batch = *batch,
					    .layer = 5,
					    .own_ppt = OWN_PPT,
					    .flags = FLAGS};
	struct engram_lookup_args again = *batch->args;
	struct engram_cuda_sieve s = make(client, rows);
	struct engram_cuda_sieve_counts counts;
	enum engram_status status = once(&s, client, ring, &b, 1, stream, err);

	/* counted before */
	again.misses = NULL;
	b.batch.args = &again;
	if (!status)
		status = once(&s, client, ring, &b, 2, stream, err);
	SHIM_CUDA(cudaMemcpy(&counts, &s.state->counts, sizeof(counts),
			     cudaMemcpyDeviceToHost));
	unmake(&s);
	if (status || (counts.rows == 2 * (uint64_t)rows &&
		       counts.hits <= rows && counts.fills <= counts.hits))
		return status;
	fprintf(stderr, "shim: sieve: %llu rows, %llu hits, %llu fills\n",
		(unsigned long long)counts.rows,
		(unsigned long long)counts.hits,
		(unsigned long long)counts.fills);
	exit(1);
}
