/* SPDX-License-Identifier: Apache-2.0 */
/* The ring's launches on the fake device: what kernels/cuda/ring*.cu do, at
 * once and by the CPU. */
#include <time.h>

#include "engram_row_math.h"
#include "engram_segment.h"
#include "fake_ring.h"

#define IDLE_NS	  UINT64_C(1000000)
#define RESCUE_NS UINT64_C(10000000000)

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

/* As the kernel, words with the batch's number. */
static void write_ids(const struct engram_cuda_ring *ring,
		      const struct engram_cuda_ring_batch *batch, uint32_t seq)
{
	const struct engram_lookup_args *args = batch->args;
	uint64_t *to = ring->ids, missed = 0;

	for (int64_t token = 0; token < args->num_tokens; token++)
		for (uint32_t i = 0; i < args->local_heads; i++) {
			uint32_t head = args->head_begin + i;
			int64_t id = -1;

			if (engram_row_is_real(args, head)) {
				id = engram_row_id(args, token, head);
				missed +=
					!engram_row_is_here(rows_of(batch), id);
			}
			*to++ = ENGRAM_RING_WORD(seq, id);
		}
	if (args->misses)
		*args->misses += missed;
}

void fake_ring_write_post(struct engram_ring_slot *slot,
			  const struct engram_cuda_ring_batch *batch,
			  uint32_t seq, uint32_t rows, uint32_t flag_rows)
{
	const uint32_t values[ENGRAM_RING_POST_WORDS] = {
		[ENGRAM_RING_NUM_ROWS] = rows,
		[ENGRAM_RING_FLAG_ROWS] = flag_rows,
		[ENGRAM_RING_LAYER_ID] = (uint32_t)batch->layer_id,
		[ENGRAM_RING_GENERATION] =
			(uint32_t)batch->source->descriptor->generation,
	};

	for (int i = 0; i < ENGRAM_RING_POST_WORDS; i++)
		__atomic_store_n(&slot->post.words[i],
				 ENGRAM_RING_WORD(seq, values[i]),
				 __ATOMIC_RELEASE);
}

int fake_ring_await_idle(const struct engram_cuda_ring *ring)
{
	const struct engram_cuda_ring_state *s = ring->state;
	uint64_t end = now_ns() + IDLE_NS;
	int idle;

	while (idle = !s->unsettled ||
		      __atomic_load_n(&ring->slot->answer.finished,
				      __ATOMIC_ACQUIRE) == s->posted,
	       !idle && now_ns() < end)
		;
	return idle;
}

/* The first rows of a batch. */
static void post(const struct engram_cuda_ring *ring,
		 const struct engram_cuda_ring_batch *batch, int64_t rows)
{
	struct engram_ring_slot *slot = ring->slot;
	struct engram_cuda_ring_state *s = ring->state;
	uint32_t seq = engram_ring_next_seq(s->seq);
	int idle = fake_ring_await_idle(ring);

	s->seq = seq;
	s->unsettled = !idle;
	for (uint32_t i = 0; i < ENGRAM_RING_FLAGS; i++)
		__atomic_store_n(
			&slot->flags[i].value,
			engram_ring_flag_of(seq, idle ? ENGRAM_RING_PENDING
						      : ENGRAM_RING_GIVEN_UP),
			__ATOMIC_RELAXED);
	write_ids(ring, batch, seq);
	if (!idle)
		return;
	fake_ring_write_post(slot, batch, seq, (uint32_t)rows,
			     batch->flag_rows);
	s->posted = seq;
	ring->counters->posted++;
}

enum engram_status engram_cuda_ring_post(
	const struct engram_cuda_ring *ring,
	const struct engram_cuda_ring_batch *batch, engram_stream stream,
	struct engram_error *err)
{
	(void)stream;
	(void)err;
	post(ring, batch, num_rows(batch));
	return ENGRAM_OK;
}

/* Some rows of the batch, from wherever `rows` and `args` say. */
static enum engram_status emit(const struct engram_cuda_ring_batch *batch,
			       const struct engram_rows *rows,
			       const struct engram_lookup_args *args,
			       uint32_t begin, struct engram_error *err)
{
	size_t at = (size_t)begin * rows->dim;
	struct engram_raw_out raw = batch->raw;

	if (batch->out)
		return engram_cpu_lookup(rows, args, batch->out + at, err);
	/* in whole tiles, or plain */
	raw.codes += at * (rows->dtype == ENGRAM_BF16 ? 2 : 1);
	if (raw.scales)
		raw.scales += (size_t)begin * engram_row_scales(rows);
	return engram_cpu_lookup_raw(rows, args, &raw, err);
}

static struct engram_lookup_args args_of(const int32_t *ids, int64_t stride,
					 uint32_t count)
{
	return (struct engram_lookup_args){
		.ids = ids,
		.ids_token_stride = stride,
		.ids_head_stride = 1,
		.num_tokens = count,
		.local_heads = 1,
		.total_heads = 1,
	};
}

/* Some rows from the table, or zeros. */
static enum engram_status from_table(const struct engram_cuda_ring *ring,
				     const struct engram_cuda_ring_batch *batch,
				     uint32_t begin, uint32_t count,
				     struct engram_error *err)
{
	/* the lower halves of the words */
	const struct engram_lookup_args args =
		args_of((const int32_t *)(ring->ids + begin), 2, count);
	struct engram_rows rows = *rows_of(batch);

	if (!rows.codes)
		rows.row_begin = rows.row_end = 0;
	return emit(batch, &rows, &args, begin, err);
}

/* Records [begin, begin + count) of the batch, one after another. */
static enum engram_status decode(const struct engram_cuda_ring *ring,
				 const struct engram_cuda_ring_batch *batch,
				 const uint8_t *records, uint32_t begin,
				 uint32_t count, struct engram_error *err)
{
	struct engram_rows rows = *rows_of(batch);
	enum engram_status status = ENGRAM_OK;
	const int32_t first = 0;
	const struct engram_lookup_args args = args_of(&first, 0, 1);

	rows.code_stride_bytes = rows.scale_stride_bytes = ring->row_stride;
	rows.codes = records;
	rows.scales = records + rows.dim * (rows.dtype == ENGRAM_BF16 ? 2 : 1);
	if (batch->out)
		return engram_cpu_decode(&rows, count,
					 batch->out + (size_t)begin * rows.dim,
					 err);
	rows.row_begin = 0;
	rows.row_end = 1;
	for (uint32_t i = 0; i < count && !status; i++) {
		rows.codes = records + (size_t)i * ring->row_stride;
		rows.scales = (const uint8_t *)rows.codes +
			      rows.dim * (rows.dtype == ENGRAM_BF16 ? 2 : 1);
		status = emit(batch, &rows, &args, begin + i, err);
	}
	return status;
}

enum engram_status engram_cuda_ring_decode(
	const struct engram_cuda_ring *ring,
	const struct engram_cuda_ring_batch *batch, const uint8_t *staged,
	int64_t begin, int64_t end, engram_stream stream,
	struct engram_error *err)
{
	(void)stream;
	return decode(ring, batch, staged + begin * ring->row_stride,
		      (uint32_t)begin, (uint32_t)(end - begin), err);
}

static uint32_t flag_of(const struct engram_cuda_ring *ring, uint32_t flag)
{
	return __atomic_load_n(&ring->slot->flags[flag].value,
			       __ATOMIC_ACQUIRE);
}

static uint32_t seq_of(const struct engram_cuda_ring *ring,
		       const struct engram_cuda_ring_batch *batch)
{
	return batch->posted_seq ? batch->posted_seq : ring->state->seq;
}

int fake_ring_has_come(const struct engram_cuda_ring *ring,
		       const struct engram_cuda_ring_batch *batch,
		       uint32_t value)
{
	uint32_t seq = seq_of(ring, batch);

	if (value == engram_ring_flag_of(seq, ENGRAM_RING_ROWS))
		return 1;
	if (value != engram_ring_flag_of(seq, ENGRAM_RING_REFUSED))
		ring->state->unsettled = 1;
	return 0;
}

int fake_ring_await_rescue(const struct engram_cuda_ring *ring, uint32_t flag,
			   uint32_t seq)
{
	const uint32_t *at = &ring->rescue->flags[flag].value;
	uint64_t end = now_ns() + RESCUE_NS;
	uint32_t value;

	while (value = __atomic_load_n(at, __ATOMIC_ACQUIRE),
	       value >> 2 != seq || !(value & 3))
		if (now_ns() > end)
			return 0;
	return value == engram_ring_flag_of(seq, ENGRAM_RING_ROWS);
}

/* Ask for a chunk in the rescue slot: has it come? */
static int rescue(const struct engram_cuda_ring *ring,
		  const struct engram_cuda_ring_batch *batch, uint32_t begin,
		  uint32_t count)
{
	uint32_t seq = seq_of(ring, batch);

	for (uint32_t i = begin; i < begin + count; i++)
		__atomic_store_n(&ring->rescue_ids[i],
				 ENGRAM_RING_WORD(seq, ring->ids[i]),
				 __ATOMIC_RELEASE);
	fake_ring_write_post(ring->rescue, batch, seq,
			     num_rows(batch) - (uint32_t)batch->own_rows,
			     batch->flag_rows);
	return fake_ring_await_rescue(ring, begin / batch->flag_rows, seq);
}

/* A chunk that engramd did not deliver. */
static enum engram_status repair(const struct engram_cuda_ring *ring,
				 const struct engram_cuda_ring_batch *batch,
				 uint32_t begin, uint32_t count,
				 struct engram_error *err)
{
	const struct engram_rows *rows = rows_of(batch);
	int rescued = !rows->codes && ring->rescue &&
		      rescue(ring, batch, begin, count);

	for (uint32_t i = 0; i < count; i++)
		if (engram_row_is_here(rows, (int32_t)ring->ids[begin + i]))
			rows->codes || rescued ? ring->counters->fallback++
					       : ring->counters->failed++;
	ring->counts->fallback = ring->counters->fallback;
	ring->counts->failed = ring->counters->failed;
	if (!rescued)
		return from_table(ring, batch, begin, count, err);
	return decode(ring, batch,
		      ring->rescue_rows + (size_t)begin * ring->row_stride,
		      begin, count, err);
}

enum engram_status engram_cuda_ring_repair(
	const struct engram_cuda_ring *ring,
	const struct engram_cuda_ring_batch *batch, engram_stream stream,
	struct engram_error *err)
{
	enum engram_status status = ENGRAM_OK;
	uint32_t rows = num_rows(batch), n = batch->flag_rows;

	(void)stream;
	for (uint32_t at = 0; at < rows && !status; at += n)
		if (!fake_ring_has_come(ring, batch, flag_of(ring, at / n)))
			status = repair(ring, batch, at,
					rows - at < n ? rows - at : n, err);
	return status;
}

int engram_cuda_ring_can_lookup(const struct engram_rows *rows)
{
	return rows->dim == 256;
}

/* What has become of the chunk, before `end`?  Looked at once: later, it may be
 * another. */
static uint32_t await(const struct engram_cuda_ring *ring, uint32_t flag,
		      uint64_t end)
{
	uint32_t value;

	while (value = flag_of(ring, flag), !(value & 3) && now_ns() < end)
		;
	return value;
}

enum engram_status engram_cuda_ring_lookup(
	const struct engram_cuda_ring *ring,
	const struct engram_cuda_ring_batch *batch, engram_stream stream,
	struct engram_error *err)
{
	uint64_t end = now_ns() + batch->timeout_ns;
	uint32_t rows = num_rows(batch) - (uint32_t)batch->own_rows, n;
	enum engram_status status = ENGRAM_OK;

	(void)stream;
	if (!batch->posted_seq)
		post(ring, batch, rows);
	for (uint32_t at = 0; at < rows && !status; at += n) {
		n = rows - at < batch->flag_rows ? rows - at : batch->flag_rows;
		if (fake_ring_has_come(ring, batch,
				       await(ring, at / batch->flag_rows, end)))
			status = decode(ring, batch,
					ring->rows +
						(size_t)at * ring->row_stride,
					at, n, err);
		else
			status = repair(ring, batch, at, n, err);
	}
	if (!status && batch->own_rows)
		status = from_table(ring, batch, rows,
				    (uint32_t)batch->own_rows, err);
	return status;
}
