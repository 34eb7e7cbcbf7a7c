/* SPDX-License-Identifier: Apache-2.0 */
/* The ring's launches on the fake device: what kernels/cuda/ring.cu does, at
 * once and by the CPU. */
#include <time.h>

#include "engram_cuda_ring.h"
#include "engram_ring.h"
#include "engram_row_math.h"

static const struct engram_rows *rows_of(
	const struct engram_cuda_ring_batch *batch)
{
	return &batch->source->descriptor->rows;
}

static uint32_t num_rows(const struct engram_cuda_ring_batch *batch)
{
	return (uint32_t)(batch->args->num_tokens * batch->args->local_heads);
}

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void write_ids(const struct engram_cuda_ring *ring,
		      const struct engram_cuda_ring_batch *batch)
{
	const struct engram_lookup_args *args = batch->args;
	int32_t *to = ring->ids;

	for (int64_t token = 0; token < args->num_tokens; token++)
		for (uint32_t i = 0; i < args->local_heads; i++) {
			uint32_t head = args->head_begin + i;
			int64_t id = -1;

			if (engram_row_is_real(args, head)) {
				id = engram_row_id(args, token, head);
				*args->misses +=
					!engram_row_is_here(rows_of(batch), id);
			}
			*to++ = (int32_t)id;
		}
}

enum engram_status engram_cuda_ring_post(
	const struct engram_cuda_ring *ring,
	const struct engram_cuda_ring_batch *batch, engram_stream stream,
	struct engram_error *err)
{
	struct engram_ring_slot *slot = ring->slot;
	uint32_t seq = engram_ring_next_seq(ring->state->seq);
	uint64_t end = now_ns() + batch->timeout_ns;
	int idle;

	(void)stream;
	(void)err;
	while (idle = __atomic_load_n(&slot->answer.finished,
				      __ATOMIC_ACQUIRE) == ring->state->posted,
	       !idle && now_ns() < end)
		;
	write_ids(ring, batch);
	ring->state->seq = seq;
	for (uint32_t i = 0; i < ENGRAM_RING_FLAGS; i++)
		__atomic_store_n(
			&slot->flags[i].value,
			engram_ring_flag_of(seq, idle ? ENGRAM_RING_PENDING
						      : ENGRAM_RING_GIVEN_UP),
			__ATOMIC_RELAXED);
	if (!idle)
		return ENGRAM_OK;
	slot->post.generation = batch->source->descriptor->generation;
	slot->post.layer_id = batch->layer_id;
	slot->post.num_rows = num_rows(batch);
	slot->post.flag_rows = batch->flag_rows;
	__atomic_store_n(&slot->post.seq, seq, __ATOMIC_RELEASE);
	ring->state->posted = seq;
	ring->counters->posted++;
	return ENGRAM_OK;
}

/* One chunk from the table, or zeros. */
static enum engram_status repair(const struct engram_cuda_ring *ring,
				 const struct engram_cuda_ring_batch *batch,
				 uint32_t begin, uint32_t count, uint16_t *out,
				 struct engram_error *err)
{
	const struct engram_lookup_args args = {
		.ids = ring->ids + begin,
		.ids_token_stride = 1,
		.ids_head_stride = 1,
		.num_tokens = count,
		.local_heads = 1,
		.total_heads = 1,
	};
	struct engram_rows rows = *rows_of(batch);

	for (uint32_t i = 0; i < count; i++)
		if (engram_row_is_here(&rows, args.ids[i]))
			rows.codes ? ring->counters->fallback++
				   : ring->counters->failed++;
	if (!rows.codes)
		rows.row_begin = rows.row_end = 0;
	return engram_cpu_lookup(&rows, &args, out + (size_t)begin * rows.dim,
				 err);
}

enum engram_status engram_cuda_ring_repair(
	const struct engram_cuda_ring *ring,
	const struct engram_cuda_ring_batch *batch, uint16_t *out,
	engram_stream stream, struct engram_error *err)
{
	enum engram_status status = ENGRAM_OK;
	uint32_t rows = num_rows(batch), n = batch->flag_rows;

	(void)stream;
	for (uint32_t at = 0; at < rows && !status; at += n)
		if (__atomic_load_n(&ring->slot->flags[at / n].value,
				    __ATOMIC_ACQUIRE) !=
		    engram_ring_flag_of(ring->state->seq, ENGRAM_RING_ROWS))
			status =
				repair(ring, batch, at,
				       rows - at < n ? rows - at : n, out, err);
	return status;
}

enum engram_status engram_cuda_decode(const struct engram_rows *rows,
				      int64_t count, uint16_t *out,
				      engram_stream stream,
				      struct engram_error *err)
{
	(void)stream;
	return engram_cpu_decode(rows, count, out, err);
}

int engram_cuda_ring_can_lookup(const struct engram_rows *rows)
{
	return rows->dim == 256;
}

/* Is the chunk there, before `end`?  Looked at once: later, it may be. */
static int await(const struct engram_cuda_ring *ring, uint32_t flag,
		 uint64_t end)
{
	const uint32_t *at = &ring->slot->flags[flag].value;
	uint32_t value;

	while (value = __atomic_load_n(at, __ATOMIC_ACQUIRE),
	       !(value & 3) && now_ns() < end)
		;
	return value == engram_ring_flag_of(ring->state->seq, ENGRAM_RING_ROWS);
}

enum engram_status engram_cuda_ring_lookup(
	const struct engram_cuda_ring *ring,
	const struct engram_cuda_ring_batch *batch, uint16_t *out,
	engram_stream stream, struct engram_error *err)
{
	enum engram_status status =
		engram_cuda_ring_post(ring, batch, stream, err);
	uint64_t end = now_ns() + batch->timeout_ns;
	struct engram_rows staged = *rows_of(batch);
	uint32_t rows = num_rows(batch), n;

	staged.code_stride_bytes = staged.scale_stride_bytes = ring->row_stride;
	for (uint32_t at = 0; at < rows && !status; at += n) {
		n = rows - at < batch->flag_rows ? rows - at : batch->flag_rows;
		staged.codes = ring->rows + (size_t)at * ring->row_stride;
		staged.scales = (const uint8_t *)staged.codes + 256;
		status = await(ring, at / batch->flag_rows, end)
				 ? engram_cpu_decode(
					   &staged, n,
					   out + (size_t)at * staged.dim, err)
				 : repair(ring, batch, at, n, out, err);
	}
	return status;
}
