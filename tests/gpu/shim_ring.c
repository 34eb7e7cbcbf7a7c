/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lookups through a ring that a thread serves as engramd's do, with their code.
 * By `host` the device gets no rows at all; by `hybrid` it reads a third.  What
 * a kernel can look up it looks up; else the stream's part is done here: chunks
 * are awaited, copied and decoded.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engram_cuda_ring.h"
#include "engram_ring.h"
#include "engram_segment.h"
#include "gather_ring.h"
#include "shim_parts.h"

#define FLAGS	    6
#define TIMEOUT_NS  UINT64_C(20000000000)
#define TILE_TOKENS 128 /* of scales in tiles */

struct ring {
	struct engram_ring client;
	struct gather_ring *served;
	struct gather_binding *binding;
	pthread_t thread;
	atomic_int stop;
	struct engram_cuda_ring_state *state; /* and the counters behind it */
	struct engram_cuda_ring_counters *counters;
};

static void die(const char *what, const struct engram_error *err)
{
	fprintf(stderr, "shim: %s: %s\n", what, err ? err->message : "failed");
	exit(1);
}

static void *serve(void *arg)
{
	struct ring *r = arg;
	struct gather_unit unit;
	struct gather_plan plan;

	/* what a new ring holds is no post */
	while (!atomic_load(&r->stop))
		if (engram_ring_posted(&r->served->ring, 0) &&
		    gather_look(r->served, 0, 64, &plan) &&
		    gather_claim(r->served, 0, &plan, 0, true, &unit) ==
			    GATHER_UNIT)
			gather_serve(&unit);
	return NULL;
}

static void open_ring(struct ring *r, const struct engram_rows *rows,
		      uint32_t count)
{
	const struct engram_ring_shape shape = {
		1, count,
		(uint32_t)(shim_code_bytes(rows) + shim_scale_bytes(rows))};
	struct engram_error err;
	int fd;

	memset(r, 0, sizeof(*r));
	r->served = gather_ring_new(1);
	r->binding =
		calloc(1, sizeof(*r->binding) + sizeof(r->binding->layers[0]));
	if (!r->served || !r->binding)
		die("no memory", NULL);
	if (engram_ring_create(&shape, &r->client, &fd, &err) ||
	    engram_ring_map(fd, &r->served->ring, &err))
		die("ring", &err);
	close(fd);
	r->binding->generation = 1;
	r->binding->num_layers = 1;
	r->binding->layers[0].rows = *rows;
	atomic_store(&r->served->bindings[0], r->binding);
	gather_ring_begin(r->served, 1);
	SHIM_CUDA(cudaHostRegister(r->client.base, r->client.bytes,
				   cudaHostRegisterMapped));
	SHIM_CUDA(cudaMalloc((void **)&r->state,
			     sizeof(*r->state) + sizeof(*r->counters)));
	SHIM_CUDA(cudaMemset(r->state, 0,
			     sizeof(*r->state) + sizeof(*r->counters)));
	r->counters = (struct engram_cuda_ring_counters *)(r->state + 1);
	if (pthread_create(&r->thread, NULL, serve, r))
		die("no thread", NULL);
}

/* Not one row came another way. */
static void close_ring(struct ring *r, cudaStream_t stream)
{
	struct engram_cuda_ring_counters c;

	SHIM_CUDA(cudaStreamSynchronize(stream));
	SHIM_CUDA(
		cudaMemcpy(&c, r->counters, sizeof(c), cudaMemcpyDeviceToHost));
	atomic_store(&r->stop, 1);
	pthread_join(r->thread, NULL);
	/* a sieve may find nothing to post */
	if ((c.posted != 1 && engram_shim_options.ring != ENGRAM_SHIM_SIEVE) ||
	    c.fallback || c.failed) {
		fprintf(stderr,
			"shim: posted %llu, rows not gathered %llu and %llu\n",
			(unsigned long long)c.posted,
			(unsigned long long)c.fallback,
			(unsigned long long)c.failed);
		exit(1);
	}
	SHIM_CUDA(cudaFree(r->state));
	SHIM_CUDA(cudaHostUnregister(r->client.base));
	engram_ring_unmap(&r->client);
	gather_ring_free(r->served);
	free(r->binding);
}

/* What the stream does in the client: wait, copy, decode; repair. */
static enum engram_status fetch(const struct ring *r,
				const struct engram_cuda_ring *ring,
				const struct engram_cuda_ring_batch *batch,
				uint32_t count, cudaStream_t stream,
				struct engram_error *err)
{
	size_t stride = r->client.row_stride;
	enum engram_status status = ENGRAM_OK;
	uint8_t *staged;

	SHIM_CUDA(cudaMalloc((void **)&staged, count * stride));
	SHIM_CUDA(cudaStreamSynchronize(stream));
	for (uint32_t at = 0, n; at < count && !status; at += n) {
		n = count - at < batch->flag_rows ? count - at
						  : batch->flag_rows;
		/* from a thread of this process: it comes */
		engram_ring_await(&r->client, 0, at / batch->flag_rows, 1,
				  UINT64_MAX);
		SHIM_CUDA(cudaMemcpyAsync(staged + at * stride,
					  ring->rows + at * stride, n * stride,
					  cudaMemcpyHostToDevice, stream));
		status = engram_cuda_ring_decode(ring, batch, staged, at,
						 at + n, stream, err);
	}
	if (!status)
		status = engram_cuda_ring_repair(ring, batch, stream, err);
	SHIM_CUDA(cudaStreamSynchronize(stream));
	SHIM_CUDA(cudaFree(staged));
	return status;
}

/* The last tokens as ever, the first ones as they are gathered. */
static enum engram_status large(const struct ring *r,
				const struct engram_cuda_ring *ring,
				struct engram_cuda_ring_batch *batch,
				int hybrid, cudaStream_t stream,
				struct engram_error *err)
{
	const struct engram_rows *rows = &batch->source->rows;
	struct engram_lookup_args first = *batch->args, last = first;
	int64_t own = hybrid ? first.num_tokens / 3 : 0;
	enum engram_status status;
	size_t codes;

	first.num_tokens -= own;
	if (own && !batch->out &&
	    batch->raw.scale_layout != ENGRAM_SCALES_PLAIN)
		first.num_tokens -= first.num_tokens % TILE_TOKENS;
	if (!first.num_tokens)
		first.num_tokens = last.num_tokens;
	last.num_tokens -= first.num_tokens;
	last.ids += first.num_tokens * last.ids_token_stride;
	batch->args = &first;
	batch->own_rows = 0;
	status = engram_cuda_ring_post(ring, batch, stream, err);
	if (!status)
		status = fetch(r, ring, batch,
			       (uint32_t)(first.num_tokens * first.local_heads),
			       stream, err);
	if (status || !last.num_tokens)
		return status;
	codes = (size_t)first.num_tokens * first.local_heads * rows->dim;
	if (batch->out)
		return engram_cuda_lookup(batch->source, &last,
					  batch->out + codes, NULL, stream,
					  err);
	batch->raw.codes += codes / rows->dim * (size_t)shim_code_bytes(rows);
	if (batch->raw.scales)
		batch->raw.scales += engram_raw_scale_bytes(
			rows, first.num_tokens, first.local_heads,
			batch->raw.scale_layout);
	return engram_cuda_lookup_raw(batch->source, &last, &batch->raw, NULL,
				      stream, err);
}

static enum engram_status through(struct ring *r,
				  struct engram_cuda_ring_batch *batch,
				  uint32_t count, cudaStream_t stream,
				  struct engram_error *err)
{
	const struct engram_cuda_ring ring = {
		.slot = engram_ring_slot(&r->client, 0),
		.ids = engram_ring_ids(&r->client, 0),
		.rows = engram_ring_row(&r->client, 0, 0),
		.row_stride = r->client.row_stride,
		.counts = &engram_ring_header(&r->client)->counts,
		.state = r->state,
		.counters = r->counters,
	};
	int hybrid = engram_shim_options.ring == ENGRAM_SHIM_HYBRID;
	enum engram_status status;

	if (engram_shim_options.ring == ENGRAM_SHIM_SIEVE)
		return shim_sieve_lookup(&r->client, &ring, batch, count,
					 stream, err);
	batch->own_rows = hybrid ? count / 3 : 0;
	batch->flag_rows =
		engram_ring_flag_rows(count - (uint32_t)batch->own_rows, FLAGS);
	if (batch->flag_rows <= ENGRAM_CUDA_RING_CHUNK_ROWS &&
	    engram_cuda_ring_can_lookup(&batch->source->rows)) {
		status = engram_cuda_ring_lookup(&ring, batch, stream, err);
		/* rows that are not aligned are for the other way */
		if (status != ENGRAM_EINVAL || strcmp(err->path, "source"))
			return status;
	}
	return large(r, &ring, batch, hybrid, stream, err);
}

enum engram_status shim_ring_lookup(struct shim_call *call,
				    const struct engram_rows *rows,
				    const struct engram_cuda_source *source,
				    const struct engram_lookup_args *args,
				    uint16_t *out,
				    const struct engram_raw_out *raw,
				    struct engram_error *err)
{
	uint32_t count = (uint32_t)(args->num_tokens * args->local_heads);
	struct engram_cuda_ring_batch batch = {
		.source = source,
		.args = args,
		.timeout_ns = TIMEOUT_NS,
		.out = out,
	};
	enum engram_status status;
	struct ring r;

	if (raw)
		batch.raw = *raw;
	/* what fills up the tiles is the caller's */
	if (raw && raw->scales && raw->scale_layout != ENGRAM_SCALES_PLAIN)
		SHIM_CUDA(cudaMemsetAsync(
			raw->scales, 0,
			engram_raw_scale_bytes(&source->rows, args->num_tokens,
					       args->local_heads,
					       raw->scale_layout),
			call->stream));
	open_ring(&r, rows, count);
	status = through(&r, &batch, count, call->stream, err);
	if (status)
		fprintf(stderr, "shim: ring: %s\n", err->message);
	close_ring(&r, call->stream);
	return status;
}
