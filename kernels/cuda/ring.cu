/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lookups through a ring.  What the host writes while a kernel runs is read by
 * loads that no cache answers: a line that holds the end of one chunk holds the
 * beginning of the next, which may not have come yet.
 */
#include "engram_cuda_ring.h"

#include "check.h"
#include "engram_ring.h"
#include "launch.h"
#include "lookup.cuh"
#include "lookup_plan.h"

#define LOOKUP_BLOCKS 8 /* that wait; more only poll more */
#define POST_BLOCKS   8
#define POST_ROWS     4096 /* for each of them */
#define REPAIR_BLOCKS 2
#define IDLE_NS	      50000 /* `finished` follows the last flag by far less */
#define POLL_NS	      64

struct ring_task {
	struct lookup_task lookup;
	struct engram_cuda_ring ring;
	int32_t layer_id;
	uint32_t flag_rows, flags;
	uint64_t timeout_ns, idle_ns;
};

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

static __device__ __forceinline__ uint2 load_fresh(const uint8_t *from)
{
	uint2 unit;

	asm volatile("ld.relaxed.sys.global.v2.u32 {%0, %1}, [%2];"
		     : "=r"(unit.x), "=r"(unit.y)
		     : "l"(from)
		     : "memory");
	return unit;
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

	return seq < ENGRAM_RING_SEQ_MAX ? seq + 1 : 1;
}

/* Has engramd let go of the slot? */
static __device__ int await_idle(const struct ring_task &t)
{
	uint64_t begin = now_ns();

	while (load_acquire(&t.ring.slot->answer.finished) !=
	       t.ring.state->posted)
		if (now_ns() - begin > t.idle_ns)
			return 0;
	return 1;
}

static __device__ void write_ids(const struct ring_task &t,
				 const struct engram_rows &rows,
				 uint32_t thread, uint32_t threads)
{
	uint32_t misses = 0;
	int64_t end = (t.lookup.num_rows + WARP - 1) / WARP * WARP;

	/* whole warps, for the sum */
	for (int64_t at = thread; at < end; at += threads) {
		struct wanted w = fetch_id(t.lookup, at);

		if (at < t.lookup.num_rows)
			t.ring.ids[at] = w.real ? w.id : -1;
		misses += w.real && !engram_row_is_here(&rows, w.id);
	}
	count_misses(t.lookup.args.misses, misses);
}

/* By all threads of one block; `idle` counts in all of them. */
static __device__ void write_post(const struct ring_task &t, uint32_t seq,
				  int idle)
{
	struct engram_ring_post *post = &t.ring.slot->post;
	/* Pending, too, is pending for this batch: whoever gives up an older
	 * one at this very moment does not find what it expects. */
	uint32_t value = seq << 2 | (uint32_t)(idle ? ENGRAM_RING_PENDING
						    : ENGRAM_RING_GIVEN_UP);

	for (uint32_t i = threadIdx.x; i < t.flags; i += blockDim.x)
		store(&t.ring.slot->flags[i].value, value);
	if (threadIdx.x == 0 && idle) {
		post->generation = t.lookup.descriptor->generation;
		post->layer_id = t.layer_id;
		post->num_rows = (uint32_t)t.lookup.num_rows;
		post->flag_rows = t.flag_rows;
	}
	__syncthreads();
	if (threadIdx.x)
		return;
	__threadfence_system();
	if (idle) {
		store(&post->seq, seq);
		t.ring.state->posted = seq;
		t.ring.counters->posted++;
	}
}

static __global__ void __launch_bounds__(THREADS, 1)
	post_kernel(const __grid_constant__ struct ring_task t)
{
	struct engram_rows rows = rows_now(t.lookup);
	__shared__ int last, idle;
	uint32_t seq;

	write_ids(t, rows, blockIdx.x * THREADS + threadIdx.x,
		  gridDim.x * THREADS);
	__syncthreads();
	if (threadIdx.x == 0) {
		__threadfence_system();
		last = atomicAdd(&t.ring.state->arrived, 1) == gridDim.x - 1;
		idle = last && await_idle(t);
	}
	__syncthreads();
	if (!last)
		return;
	seq = next_seq(t);
	write_post(t, seq, idle);
	if (threadIdx.x == 0) {
		t.ring.state->arrived = 0;
		t.ring.state->seq = seq;
	}
}

/* ---- waiting ---- */

/* What one warp finds out for its block, so that no two warps read one flag:
 * reads of the same line of host memory go over the bus one after another. */
struct found {
	uint8_t chunk[WARP]; /* CHUNK_... */
};

#define CHUNK_PENDING 0
#define CHUNK_HERE    1
#define CHUNK_MISSING 2

/* The block's n-th chunk; chunks are dealt out to blocks in turn. */
static __device__ __forceinline__ uint32_t chunk_of(uint32_t n)
{
	return blockIdx.x + n * gridDim.x;
}

/* By one whole warp, a chunk each lane. */
static __device__ void watch(const struct ring_task &t, uint32_t seq,
			     uint64_t begin, volatile struct found *found)
{
	uint32_t lane = threadIdx.x % WARP, chunk = chunk_of(lane);
	int pending = chunk < t.flags;
	uint32_t value = 0;

	while (__any_sync(~0u, pending)) {
		if (pending)
			value = load_acquire(&t.ring.slot->flags[chunk].value);
		if (pending && value >> 2 == seq &&
		    (value & 3) != ENGRAM_RING_PENDING) {
			__threadfence_block();
			found->chunk[lane] = (value & 3) == ENGRAM_RING_ROWS
						     ? CHUNK_HERE
						     : CHUNK_MISSING;
			pending = 0;
		} else if (pending && now_ns() - begin > t.timeout_ns) {
			found->chunk[lane] = CHUNK_MISSING;
			pending = 0;
		}
	}
}

static __device__ __forceinline__ int await_chunk(
	uint32_t n, const volatile struct found *found)
{
	uint8_t what;

	while (what = found->chunk[n], what == CHUNK_PENDING)
		__nanosleep(POLL_NS);
	__threadfence_block();
	return what == CHUNK_HERE;
}

/* ---- rows ---- */

/* A tile of DEPTH rows of 256 fp8 codes from the ring. */
static __device__ __forceinline__ void tile_of_ring(const struct ring_task &t,
						    int64_t first,
						    uint32_t count,
						    uint32_t lane)
{
	const uint8_t *rows = t.ring.rows + first * t.ring.row_stride;
	uint2 unit[DEPTH], scales = make_uint2(0, 0);

#pragma unroll
	for (int k = 0; k < DEPTH; k++) {
		unit[k] = make_uint2(0, 0);
		if (k < count)
			unit[k] = load_fresh(rows + k * t.ring.row_stride +
					     lane * ENGRAM_UNIT_BYTES);
	}
	if (lane < count)
		scales = load_fresh(rows + lane * t.ring.row_stride + 256);
#pragma unroll
	for (int k = 0; k < DEPTH; k++) {
		uint32_t low = __shfl_sync(~0u, scales.x, k);
		uint32_t high = __shfl_sync(~0u, scales.y, k);
		uint32_t byte = (lane < 16 ? low : high) >> lane / 4 % 4 * 8;

		if (k < count)
			store_unit<false, false>(
				t.lookup, (first + k) * WARP + lane, unit[k],
				engram_ue8m0_to_float((uint8_t)byte));
	}
}

/* The same from the table itself, or zeros. */
template <bool OF_256>
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
		tile_of_256<false>(t.lookup, rows, first, count, index, lane);
	else
		tile_of_elements(t.lookup, rows, first, count, index, lane);
}

/* The tiles of the block's chunks, by all its warps but the one that watches.
 */
static __device__ void read_chunks(const struct ring_task &t,
				   const struct engram_rows &rows,
				   const volatile struct found *found)
{
	uint32_t lane = threadIdx.x % WARP;
	uint32_t tiles = t.flag_rows / DEPTH;

	for (uint32_t i = threadIdx.x / WARP - 1; chunk_of(i / tiles) < t.flags;
	     i += WARPS - 1) {
		int64_t first = (int64_t)chunk_of(i / tiles) * t.flag_rows +
				i % tiles * DEPTH;
		int64_t left = t.lookup.num_rows - first;
		uint32_t count = left < DEPTH ? (uint32_t)left : DEPTH;

		if (left <= 0)
			continue;
		if (await_chunk(i / tiles, found))
			tile_of_ring(t, first, count, lane);
		else
			tile_of_table<true>(t, rows, first, count, lane);
	}
}

static __global__ void __launch_bounds__(THREADS, 1)
	lookup_kernel(const __grid_constant__ struct ring_task t)
{
	struct engram_rows rows = rows_now(t.lookup);
	uint32_t seq = next_seq(t);
	uint64_t begin = now_ns();
	__shared__ struct found found;
	__shared__ int idle;

	if (threadIdx.x < WARP)
		found.chunk[threadIdx.x] = CHUNK_PENDING;
	if (blockIdx.x == 0) {
		/* both cross the bus: at once */
		if (threadIdx.x == THREADS - WARP)
			idle = await_idle(t);
		write_ids(t, rows, threadIdx.x, THREADS);
		__syncthreads();
		write_post(t, seq, idle);
	}
	__syncthreads();
	if (threadIdx.x < WARP)
		watch(t, seq, begin, &found);
	else
		read_chunks(t, rows, &found);
	__syncthreads();
	if (threadIdx.x == 0) {
		__threadfence();
		/* every block has read the number by now */
		if (atomicAdd(&t.ring.state->left, 1) == gridDim.x - 1) {
			t.ring.state->left = 0;
			t.ring.state->seq = seq;
		}
	}
}

template <bool OF_256>
static __global__ void __launch_bounds__(THREADS, 1)
	repair_kernel(const __grid_constant__ struct ring_task t)
{
	__shared__ uint8_t missing[ENGRAM_RING_FLAGS];
	uint32_t seq = t.ring.state->seq, lane = threadIdx.x % WARP;
	int64_t first =
		((int64_t)blockIdx.x * WARPS + threadIdx.x / WARP) * DEPTH;
	struct engram_rows rows;
	int bad = 0;

	for (uint32_t i = threadIdx.x; i < t.flags; i += THREADS) {
		missing[i] = load_acquire(&t.ring.slot->flags[i].value) !=
			     (seq << 2 | (uint32_t)ENGRAM_RING_ROWS);
		bad |= missing[i];
	}
	if (!__syncthreads_or(bad))
		return;
	rows = rows_now(t.lookup);
	for (; first < t.lookup.num_rows;
	     first += (int64_t)gridDim.x * WARPS * DEPTH) {
		int64_t left = t.lookup.num_rows - first;
		uint32_t count = left < DEPTH ? (uint32_t)left : DEPTH;

		if (missing[(uint32_t)first / t.flag_rows])
			tile_of_table<OF_256>(t, rows, first, count, lane);
	}
}

/* ---- the interface ---- */

int engram_cuda_ring_can_lookup(const struct engram_rows *rows)
{
	return rows->dim == 256 && rows->dtype == ENGRAM_F8_E4M3 &&
	       rows->scale_scheme == ENGRAM_SCALE_UE8M0_BLOCK &&
	       rows->block_size == 32;
}

/* May the table itself be read by tile_of_256? */
static int table_is_256(const struct lookup_task *task)
{
	return lookup_make_plan(task).path == PATH_256;
}

static enum engram_status make_task(const struct engram_cuda_ring *ring,
				    const struct engram_cuda_ring_batch *batch,
				    uint16_t *out, struct ring_task *t,
				    struct engram_error *err)
{
	enum engram_status status =
		lookup_check(batch->source, batch->args, out, err);

	if (status)
		return status;
	t->lookup = lookup_task_of(batch->source, batch->args);
	t->lookup.out = out;
	t->ring = *ring;
	t->layer_id = batch->layer_id;
	t->flag_rows = batch->flag_rows;
	t->flags = t->lookup.num_rows ? (uint32_t)((t->lookup.num_rows - 1) /
							   batch->flag_rows +
						   1)
				      : 0;
	t->timeout_ns = batch->timeout_ns;
	/* who can not read the rows itself waits longer */
	t->idle_ns = batch->source->rows.codes ? IDLE_NS : batch->timeout_ns;
	if (t->flags <= ENGRAM_RING_FLAGS &&
	    batch->flag_rows % ENGRAM_RING_FLAG_UNIT == 0)
		return ENGRAM_OK;
	return engram_invalid(err, "flag_rows",
			      "no multiple of 16, or too many chunks",
			      "use engram_ring_flag_rows");
}

enum engram_status engram_cuda_ring_lookup(
	const struct engram_cuda_ring *ring,
	const struct engram_cuda_ring_batch *batch, uint16_t *out,
	engram_stream stream, struct engram_error *err)
{
	struct ring_task t = {};
	enum engram_status status = make_task(ring, batch, out, &t, err);
	uint32_t blocks;

	if (status || !t.flags)
		return status;
	if (!engram_cuda_ring_can_lookup(&t.lookup.rows) ||
	    !table_is_256(&t.lookup))
		return engram_invalid(err, "source",
				      "rows of another kind than 256 fp8 codes "
				      "with 8 scales, or not aligned",
				      "use engram_cuda_ring_post");
	/* a warp watches as many chunks as it has lanes */
	blocks = t.flags < LOOKUP_BLOCKS ? t.flags : LOOKUP_BLOCKS;
	if (t.flags > blocks * WARP)
		return engram_invalid(err, "flag_rows", "too many chunks",
				      "use larger ones");
	lookup_kernel<<<blocks, THREADS, 0, stream>>>(t);
	return engram_cuda_launched("ring lookup kernel", err);
}

enum engram_status engram_cuda_ring_post(
	const struct engram_cuda_ring *ring,
	const struct engram_cuda_ring_batch *batch, engram_stream stream,
	struct engram_error *err)
{
	/* nothing is written; any pointer passes the checks */
	uint16_t *out = (uint16_t *)ring->ids;
	struct ring_task t = {};
	enum engram_status status = make_task(ring, batch, out, &t, err);
	int64_t blocks = (t.lookup.num_rows + POST_ROWS - 1) / POST_ROWS;

	if (status || !t.flags)
		return status;
	blocks = blocks < POST_BLOCKS ? blocks : POST_BLOCKS;
	post_kernel<<<(unsigned int)blocks, THREADS, 0, stream>>>(t);
	return engram_cuda_launched("ring post kernel", err);
}

enum engram_status engram_cuda_ring_repair(
	const struct engram_cuda_ring *ring,
	const struct engram_cuda_ring_batch *batch, uint16_t *out,
	engram_stream stream, struct engram_error *err)
{
	struct ring_task t = {};
	enum engram_status status = make_task(ring, batch, out, &t, err);

	if (status || !t.flags)
		return status;
	if (table_is_256(&t.lookup))
		repair_kernel<true><<<REPAIR_BLOCKS, THREADS, 0, stream>>>(t);
	else
		repair_kernel<false><<<REPAIR_BLOCKS, THREADS, 0, stream>>>(t);
	return engram_cuda_launched("ring repair kernel", err);
}
