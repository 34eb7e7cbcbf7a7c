/* SPDX-License-Identifier: Apache-2.0 */
/* The sieve's launches on the fake device: what kernels/cuda/sieve.cu does, at
 * once and by the CPU. */
#include <string.h>

#include "engram_cuda_sieve.h"
#include "engram_row_math.h"
#include "engram_segment.h"
#include "engram_sieve_math.h"
#include "fake_ring.h"

#define WAYS ENGRAM_SIEVE_WAYS

static const struct engram_cuda_descriptor *now_of(
	const struct engram_cuda_sieve_batch *b)
{
	return b->batch.source->descriptor;
}

static uint8_t *record_of(const struct engram_cuda_sieve *s, uint32_t at)
{
	return s->records + ((size_t)s->sets * WAYS + at) * s->record_stride;
}

static uint64_t key_of(const struct engram_cuda_sieve_batch *b, int32_t id)
{
	return engram_sieve_key(now_of(b)->epoch, b->layer, id);
}

static uint32_t set_of(const struct engram_cuda_sieve *s,
		       const struct engram_cuda_sieve_batch *b, int32_t id)
{
	return engram_sieve_set(engram_sieve_hash(b->layer, id), s->sets);
}

static int32_t find_entry(const struct engram_cuda_sieve *s,
			  const struct engram_cuda_sieve_batch *b, int32_t id,
			  uint32_t now)
{
	uint32_t first = s->sets ? set_of(s, b, id) * WAYS : 0;

	for (uint32_t at = first; s->sets && at < first + WAYS; at++)
		if (s->tags[at] == key_of(b, id)) {
			s->uses[at] = engram_sieve_hit(s->uses[at], now);
			return (int32_t)at;
		}
	return -1;
}

/* The number of a row to be fetched; where there is none yet, the next. */
static uint32_t number_of(const struct engram_cuda_sieve *s,
			  const struct engram_cuda_sieve_batch *b, int32_t id,
			  uint32_t now, uint32_t *next)
{
	uint32_t hash = engram_sieve_hash(b->layer, id), at = 0, i;

	for (i = 0; i < ENGRAM_SIEVE_PROBES; i++) {
		at = (hash + i) & s->seen_mask;
		if (s->seen[at] == ENGRAM_RING_WORD(now, id)) {
			s->state->counts.repeats++;
			return s->seen_number[at];
		}
		if (s->seen[at] >> 32 != now)
			break;
	}
	if (i < ENGRAM_SIEVE_PROBES) {
		s->seen[at] = ENGRAM_RING_WORD(now, id);
		s->seen_number[at] = *next;
	}
	s->wanted[*next] = id;
	return (*next)++;
}

static void sieve_row(const struct engram_cuda_sieve *s,
		      const struct engram_cuda_sieve_batch *b, int64_t token,
		      uint32_t head, int32_t *where, uint32_t *next)
{
	const struct engram_lookup_args *args = b->batch.args;
	uint32_t now = s->state->now;
	int32_t id;

	*where = -1;
	if (!engram_row_is_real(args, args->head_begin + head))
		return;
	id = (int32_t)engram_row_id(args, token, args->head_begin + head);
	if (!engram_row_is_here(&now_of(b)->rows, id)) {
		if (args->misses)
			++*args->misses;
		return;
	}
	*where = find_entry(s, b, id, now);
	if (*where >= 0) {
		s->state->counts.hits++;
		return;
	}
	*where = (int32_t)(s->sets * WAYS + number_of(s, b, id, now, next));
}

/* Flags of this batch, then the post. */
static void post_found(const struct engram_cuda_sieve *s,
		       const struct engram_cuda_ring *ring,
		       const struct engram_cuda_sieve_batch *b)
{
	struct engram_cuda_ring_state *r = ring->state;
	const struct engram_cuda_sieve_state *state = s->state;
	uint32_t seq = engram_ring_next_seq(r->seq);
	int idle = fake_ring_await_idle(ring);

	for (uint32_t i = 0; i < b->flags; i++) {
		int none = i * state->flag_rows >= state->posted;

		__atomic_store_n(
			&ring->slot->flags[i].value,
			engram_ring_flag_of(seq, none	? ENGRAM_RING_ROWS
						 : idle ? ENGRAM_RING_PENDING
							: ENGRAM_RING_GIVEN_UP),
			__ATOMIC_RELAXED);
	}
	for (uint32_t i = 0; i < state->fetched; i++)
		__atomic_store_n(&ring->ids[i],
				 ENGRAM_RING_WORD(seq, s->wanted[i]),
				 __ATOMIC_RELAXED);
	r->seq = seq;
	r->unsettled = !idle;
	if (!idle || !state->posted)
		return;
	fake_ring_write_post(ring->slot, &b->batch, seq, state->posted,
			     state->flag_rows);
	r->posted = seq;
	ring->counters->posted++;
}

enum engram_status engram_cuda_sieve(
	const struct engram_cuda_sieve *s, const struct engram_cuda_ring *ring,
	const struct engram_cuda_sieve_batch *batch, engram_stream stream,
	struct engram_error *err)
{
	const struct engram_lookup_args *args = batch->batch.args;
	struct engram_cuda_sieve_state *state = s->state;
	int32_t *where = s->where;
	uint32_t next = 0;

	(void)stream;
	(void)err;
	state->now++;
	for (int64_t token = 0; token < args->num_tokens; token++)
		for (uint32_t i = 0; i < args->local_heads; i++)
			sieve_row(s, batch, token, i, where++, &next);
	state->counts.rows += (uint64_t)(where - s->where);
	state->fetched = next;
	state->posted = ring ? engram_sieve_posted(next, batch->own_ppt) : 0;
	state->flag_rows = engram_sieve_flag_rows(state->posted, batch->flags);
	if (ring)
		post_found(s, ring, batch);
	s->told->cache_lookups = state->counts.rows;
	s->told->cache_hits = state->counts.hits;
	s->told->repeats = state->counts.repeats;
	s->told->cache_fills = state->counts.fills;
	return ENGRAM_OK;
}

/* From the table, or zeros, which no cache takes. */
static void fetch_rows(const struct engram_cuda_sieve *s,
		       const struct engram_cuda_sieve_batch *b, uint32_t begin,
		       uint32_t end)
{
	const struct engram_rows *rows = &now_of(b)->rows;
	size_t codes = rows->dim * (rows->dtype == ENGRAM_BF16 ? 2u : 1u);

	for (uint32_t at = begin; at < end; at++) {
		int64_t stored = s->wanted[at] - rows->row_begin;
		uint8_t *to = record_of(s, at);

		memset(to, 0, s->record_stride);
		if (!rows->codes) {
			s->wanted[at] = -1;
			continue;
		}
		memcpy(to,
		       (const uint8_t *)rows->codes +
			       stored * rows->code_stride_bytes,
		       codes);
		if (rows->scale_scheme == ENGRAM_SCALE_UE8M0_BLOCK)
			memcpy(to + codes,
			       (const uint8_t *)rows->scales +
				       stored * rows->scale_stride_bytes,
			       engram_row_scales(rows));
	}
}

static void copy_records(const struct engram_cuda_sieve *s, const uint8_t *from,
			 uint32_t begin, uint32_t end)
{
	memcpy(record_of(s, begin), from + (size_t)begin * s->record_stride,
	       (size_t)(end - begin) * s->record_stride);
}

static int rescue(const struct engram_cuda_sieve *s,
		  const struct engram_cuda_ring *ring,
		  const struct engram_cuda_sieve_batch *b, uint32_t chunk,
		  uint32_t begin, uint32_t end)
{
	uint32_t seq = ring->state->seq;

	for (uint32_t i = begin; i < end; i++)
		__atomic_store_n(&ring->rescue_ids[i],
				 ENGRAM_RING_WORD(seq, s->wanted[i]),
				 __ATOMIC_RELEASE);
	fake_ring_write_post(ring->rescue, &b->batch, seq, s->state->posted,
			     s->state->flag_rows);
	if (!fake_ring_await_rescue(ring, chunk, seq))
		return 0;
	copy_records(s, ring->rescue_rows, begin, end);
	return 1;
}

static void fetch_missing(const struct engram_cuda_sieve *s,
			  const struct engram_cuda_ring *ring,
			  const struct engram_cuda_sieve_batch *b,
			  uint32_t chunk, uint32_t begin, uint32_t end)
{
	struct engram_cuda_ring_counters *c = ring->counters;
	int table = now_of(b)->rows.codes != NULL;
	int rescued =
		!table && ring->rescue && rescue(s, ring, b, chunk, begin, end);

	*(table || rescued ? &c->fallback : &c->failed) += end - begin;
	ring->counts->fallback = c->fallback;
	ring->counts->failed = c->failed;
	if (!rescued)
		fetch_rows(s, b, begin, end);
}

enum engram_status engram_cuda_sieve_fetch(
	const struct engram_cuda_sieve *s, const struct engram_cuda_ring *ring,
	const struct engram_cuda_sieve_batch *batch, int chunk,
	engram_stream stream, struct engram_error *err)
{
	const struct engram_cuda_sieve_state *state = s->state;
	uint32_t begin, end, value;

	(void)stream;
	(void)err;
	if (chunk == ENGRAM_SIEVE_OWN) {
		fetch_rows(s, batch, state->posted, state->fetched);
		return ENGRAM_OK;
	}
	begin = (uint32_t)chunk * state->flag_rows;
	if (begin >= state->posted)
		return ENGRAM_OK;
	end = begin + state->flag_rows;
	end = end < state->posted ? end : state->posted;
	value = __atomic_load_n(&ring->slot->flags[chunk].value,
				__ATOMIC_ACQUIRE);
	if (fake_ring_has_come(ring, &batch->batch, value))
		copy_records(s, ring->rows, begin, end);
	else
		fetch_missing(s, ring, batch, (uint32_t)chunk, begin, end);
	return ENGRAM_OK;
}

enum engram_status engram_cuda_sieve_decode(
	const struct engram_cuda_sieve *s,
	const struct engram_cuda_sieve_batch *b, engram_stream stream,
	struct engram_error *err)
{
	const struct engram_lookup_args *from = b->batch.args;
	struct engram_rows rows = now_of(b)->rows;
	const struct engram_lookup_args args = {
		.ids = s->where,
		.ids_token_stride = from->local_heads,
		.ids_head_stride = 1,
		.num_tokens = from->num_tokens,
		.local_heads = from->local_heads,
		.total_heads = from->local_heads,
	};

	(void)stream;
	rows.codes = s->records;
	rows.scales =
		s->records + rows.dim * (rows.dtype == ENGRAM_BF16 ? 2 : 1);
	rows.code_stride_bytes = rows.scale_stride_bytes = s->record_stride;
	rows.row_begin = 0;
	rows.row_end = (int64_t)s->sets * WAYS + s->max_rows;
	if (b->batch.out)
		return engram_cpu_lookup(&rows, &args, b->batch.out, err);
	return engram_cpu_lookup_raw(&rows, &args, &b->batch.raw, err);
}

static void fill_row(const struct engram_cuda_sieve *s,
		     const struct engram_cuda_sieve_batch *b, uint32_t from)
{
	int32_t id = s->wanted[from];
	uint32_t first, at, least = 0x100, worth, now = s->state->now;
	uint64_t key = key_of(b, id);

	if (id < 0)
		return;
	first = at = set_of(s, b, id) * WAYS;
	for (uint32_t i = first; i < first + WAYS; i++) {
		worth = engram_sieve_worth(s->tags[i], s->uses[i], key, now);
		if (s->tags[i] == key)
			return;
		if (worth >= least)
			continue;
		least = worth;
		at = i;
	}
	if (least > ENGRAM_SIEVE_HITS_MAX)
		return;
	if (least) {
		s->uses[at]--;
		return;
	}
	s->uses[at] = engram_sieve_use(now, 0);
	s->tags[at] = key;
	memcpy(s->records + (size_t)at * s->record_stride, record_of(s, from),
	       s->record_stride);
	s->state->counts.fills++;
}

enum engram_status engram_cuda_sieve_fill(
	const struct engram_cuda_sieve *s,
	const struct engram_cuda_sieve_batch *batch, engram_stream stream,
	struct engram_error *err)
{
	(void)stream;
	(void)err;
	for (uint32_t i = 0; s->sets && i < s->state->fetched; i++)
		fill_row(s, batch, i);
	return ENGRAM_OK;
}
