/* SPDX-License-Identifier: Apache-2.0 */
/* What the launches through a ring have in common; inside kernels/cuda. */
#ifndef ENGRAM_RING_CUH
#define ENGRAM_RING_CUH

#include "check.h"
#include "engram_cuda_ring.h"
#include "engram_ring.h"
#include "launch.h"
#include "lookup.cuh"
#include "lookup_plan.h"

#define RESCUE_NS 1000000000 /* for the client's own threads */
#define IDLE_NS	  50000	     /* `finished` follows the last flag by far less */

struct ring_task {
	struct lookup_task lookup;
	struct engram_cuda_ring ring;
	int32_t layer_id;
	uint32_t posted_seq;
	uint32_t flag_rows, flags;
	uint32_t posted_rows; /* from the first on; of num_rows */
	uint32_t ring_blocks; /* of the grid; the others read over UVA */
	uint64_t timeout_ns;
};

/* Checks it all.  In ring.cu. */
enum engram_status ring_make_task(const struct engram_cuda_ring *ring,
				  const struct engram_cuda_ring_batch *batch,
				  struct ring_task *t,
				  struct engram_error *err);
/* May the table itself be read by tile_of_256? */
static inline int table_is_256(const struct lookup_task *task)
{
	return lookup_make_plan(task).path == PATH_256;
}

/* ---- memory that the host writes, too ---- */

static __device__ __forceinline__ uint32_t load_acquire(const uint32_t *from)
{
	uint32_t value;

	asm volatile("ld.acquire.sys.global.u32 %0, [%1];"
		     : "=r"(value)
		     : "l"(from)
		     : "memory");
	return value;
}

static __device__ __forceinline__ void store(uint32_t *to, uint32_t value)
{
	asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(to), "r"(value)
		     : "memory");
}

static __device__ __forceinline__ void store_word(uint64_t *to, uint32_t seq,
						  uint32_t value)
{
	asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(to),
		     "l"(ENGRAM_RING_WORD(seq, value))
		     : "memory");
}

static __device__ __forceinline__ uint64_t now_ns(void)
{
	uint64_t now;

	asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
	return now;
}

/* ---- posting ---- */

static __device__ __forceinline__ uint32_t next_seq(const struct ring_task &t)
{
	uint32_t seq = t.ring.state->seq;

	if (t.posted_seq)
		return t.posted_seq;
	return seq < ENGRAM_RING_SEQ_MAX ? seq + 1 : 1;
}

/* Has engramd let go of the slot? */
static __device__ int await_idle(const struct ring_task &t)
{
	uint64_t begin = now_ns();

	while (load_acquire(&t.ring.slot->answer.finished) !=
	       t.ring.state->posted)
		if (now_ns() - begin > IDLE_NS)
			return 0;
	return 1;
}

/* What is posted of a row.  Counts those that are not here. */
static __device__ __forceinline__ void write_id(const struct ring_task &t,
						const struct engram_rows &rows,
						uint32_t seq, int64_t at,
						int post, uint32_t *misses)
{
	struct wanted w = fetch_id(t.lookup, at);

	if (post)
		store_word(&t.ring.ids[at], seq,
			   (uint32_t)(w.real ? w.id : -1));
	*misses += w.real && !engram_row_is_here(&rows, w.id);
}

/* A word each, by threads 0..ENGRAM_RING_POST_WORDS - 1. */
static __device__ __forceinline__ void write_post_of(
	const struct ring_task &t, struct engram_ring_slot *slot, uint32_t seq,
	uint32_t word, uint32_t num_rows, uint32_t flag_rows)
{
	uint32_t value = num_rows;

	if (word == ENGRAM_RING_FLAG_ROWS)
		value = flag_rows;
	else if (word == ENGRAM_RING_LAYER_ID)
		value = (uint32_t)t.layer_id;
	else if (word == ENGRAM_RING_GENERATION)
		value = (uint32_t)t.lookup.descriptor->generation;
	store_word(&slot->post.words[word], seq, value);
}

static __device__ __forceinline__ void write_post(const struct ring_task &t,
						  struct engram_ring_slot *slot,
						  uint32_t seq, uint32_t word)
{
	write_post_of(t, slot, seq, word, t.posted_rows, t.flag_rows);
}

/* Will the rescue slot have the chunk?  By one thread. */
static __device__ int await_rescue(const struct ring_task &t, uint32_t seq,
				   uint32_t chunk)
{
	const uint32_t *flag = &t.ring.rescue->flags[chunk].value;
	uint64_t begin = now_ns();
	uint32_t value;

	while (value = load_acquire(flag), value >> 2 != seq || !(value & 3))
		if (now_ns() - begin > RESCUE_NS)
			return 0;
	return value == (seq << 2 | (uint32_t)ENGRAM_RING_ROWS);
}

/* Ask for a chunk there; by `threads` threads. */
static __device__ void post_rescue(const struct ring_task &t, uint32_t seq,
				   int64_t first, uint32_t count,
				   uint32_t thread, uint32_t threads)
{
	if (thread < ENGRAM_RING_POST_WORDS)
		write_post(t, t.ring.rescue, seq, thread);
	for (uint32_t i = thread; i < count; i += threads) {
		struct wanted w = fetch_id(t.lookup, first + i);

		store_word(&t.ring.rescue_ids[first + i], seq,
			   (uint32_t)(w.real ? w.id : -1));
	}
}

/* All flags pending, or given up, for this batch; before it is posted. */
static __device__ void clear_flags(const struct ring_task &t, uint32_t seq,
				   int idle)
{
	uint32_t value = seq << 2 | (uint32_t)(idle ? ENGRAM_RING_PENDING
						    : ENGRAM_RING_GIVEN_UP);

	for (uint32_t i = threadIdx.x; i < t.flags; i += blockDim.x)
		store(&t.ring.slot->flags[i].value, value);
	__threadfence_system();
	__syncthreads();
}

/* By the last block of a launch that has posted, or not. */
static __device__ void end_launch(const struct ring_task &t, uint32_t seq,
				  int idle)
{
	struct engram_cuda_ring_state *s = t.ring.state;

	s->left = s->decision = 0;
	s->seq = seq;
	if (!idle)
		return;
	s->posted = seq;
	t.ring.counters->posted++;
}

/* What was not delivered is for people to see. */
static __device__ void tell_counts(const struct ring_task &t)
{
	volatile struct engram_cuda_ring_counters *from = t.ring.counters;
	volatile struct engram_ring_counts *to = t.ring.counts;

	to->fallback = from->fallback;
	to->failed = from->failed;
}

/* ---- rows ---- */

/* A tile of DEPTH rows from the table itself, or zeros; `task` counts what it
 * was that engramd did not deliver. */
template <bool OF_256, bool RAW>
static __device__ void tile_of_table(const struct ring_task &t,
				     const struct engram_rows &rows,
				     int64_t first, uint32_t count,
				     uint32_t lane)
{
	uint32_t ignored = 0;
	struct wanted w = fetch_id(t.lookup, lane < count ? first + lane
							  : t.lookup.num_rows);
	int64_t index = find_row(t.lookup, rows, w, &ignored);
	unsigned long long n = __popc(__ballot_sync(~0u, index >= 0));

	if (lane == 0 && n)
		atomicAdd((unsigned long long
				   *)(rows.codes ? &t.ring.counters->fallback
						 : &t.ring.counters->failed),
			  n);
	if (!rows.codes)
		index = -1;
	if (OF_256)
		tile_of_256<RAW>(t.lookup, rows, first, count, index, lane);
	else
		tile_of_elements(t.lookup, rows, first, count, index, lane);
	if (RAW && t.lookup.raw.scales &&
	    rows.scale_scheme == ENGRAM_SCALE_UE8M0_BLOCK)
		store_scales(t.lookup, rows, first, count, index, lane);
}

static __device__ __forceinline__ void count_rows(uint64_t *counter,
						  uint32_t rows)
{
	atomicAdd((unsigned long long *)counter, (unsigned long long)rows);
}

#endif
