/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A small lookup through a ring, in one kernel.  What decides how long it takes
 * is how often something crosses the bus and is waited for: ids and post are
 * stored without a fence, since each word says whose it is; a chunk's flag is
 * read by one thread alone, as reads of one line of host memory go over the bus
 * one after another; and rows are fetched by bulk copies, in whole lines, after
 * the flag has been acquired.  Loads that are strong at system scope would
 * fetch them as well, in single sectors and half as fast.
 */
#include "ring.cuh"

/* Of a lookup in one kernel: a block is so many groups, each of which fetches
 * a chunk at a time. */
#define GROUPS	      4
#define GROUP_THREADS (THREADS / GROUPS)
#define GROUP_WARPS   (WARPS / GROUPS)
#define RING_BLOCKS   8	 /* that wait; more only poll more */
#define OWN_BLOCKS    4	 /* that read over UVA */
#define OWN_ROWS      96 /* for each of them */
#define RECORD_BYTES  264
#define CHUNK_BYTES   (ENGRAM_CUDA_RING_CHUNK_ROWS * RECORD_BYTES)

#define MISSING 1u /* chunks of this launch */
#define LATE	2u /* and not answered at all */

/* The scales of a row as stored; by a warp. */
static __device__ __forceinline__ void store_row_scales(
	const struct lookup_task &task, int64_t at, const uint8_t *scales,
	uint32_t lane)
{
	const uint32_t each = RECORD_BYTES - 256;
	uint32_t heads = task.args.local_heads;
	int64_t col = (int64_t)((uint32_t)at % heads) * each + lane;

	if (lane < each)
		task.raw.scales[engram_raw_scale_place(
			task.raw.scale_layout, (uint32_t)at / heads, col,
			(int64_t)heads * each)] = scales[lane];
}

/* A row of 256 fp8 codes and 8 scales in shared memory; by a warp. */
template <bool RAW>
static __device__ __forceinline__ void emit_row(const struct lookup_task &task,
						int64_t at,
						const uint8_t *record,
						uint32_t lane)
{
	uint2 codes = *(const uint2 *)(record + lane * ENGRAM_UNIT_BYTES);
	uint8_t scale = record[256 + lane / 4];

	store_unit<false, RAW>(task, at * WARP + lane, codes,
			       engram_ue8m0_to_float(scale));
	if (RAW && task.raw.scales)
		store_row_scales(task, at, record + 256, lane);
}

/* ---- chunks ---- */

/* One group's part of a block, in shared memory. */
struct group {
	alignas(128) uint8_t rows[CHUNK_BYTES];
	uint64_t barrier;
	int here; /* the rows have come, or are coming */
};

static __device__ __forceinline__ void group_sync(uint32_t group)
{
	asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "n"(GROUP_THREADS)
		     : "memory");
}

#if __CUDA_ARCH__ >= 900
static __device__ __forceinline__ uint32_t shared_address(const void *at)
{
	return (uint32_t)__cvta_generic_to_shared(at);
}

static __device__ __forceinline__ void group_init(struct group *g)
{
	asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(
			     shared_address(&g->barrier))
		     : "memory");
	asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/* By the one thread that has acquired the flag: have the bulk copy engine fetch
 * the rows, or say that they do not come.  The fence lets the engine see what
 * the thread has seen. */
static __device__ __forceinline__ void fetch_rows(struct group *g,
						  const uint8_t *from,
						  uint32_t bytes)
{
	uint32_t barrier = shared_address(&g->barrier);

	if (!g->here) {
		asm volatile(
			"mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier)
			: "memory");
		return;
	}
	asm volatile("fence.proxy.async;" ::: "memory");
	asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(
			     barrier),
		     "r"(bytes)
		     : "memory");
	asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::"
		     "complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
			     shared_address(g->rows)),
		     "l"(from), "r"(bytes), "r"(barrier)
		     : "memory");
}

/* By all threads of the group: until the rows are there, or do not come. */
static __device__ __forceinline__ void await_rows(struct group *g,
						  const uint8_t *, uint32_t,
						  uint32_t parity, uint32_t,
						  uint32_t)
{
	uint32_t done = 0;

	while (!done)
		asm volatile("{\n\t.reg .pred p;\n\t"
			     "mbarrier.try_wait.parity.shared.b64 p, [%1], "
			     "%2;\n\t"
			     "selp.u32 %0, 1, 0, p;\n\t}"
			     : "=r"(done)
			     : "r"(shared_address(&g->barrier)), "r"(parity)
			     : "memory");
}
#else
static __device__ __forceinline__ void group_init(struct group *)
{
}

static __device__ __forceinline__ void fetch_rows(struct group *,
						  const uint8_t *, uint32_t)
{
}

/* The loads are ordered after the acquired flag by the barrier. */
static __device__ __forceinline__ void await_rows(struct group *g,
						  const uint8_t *from,
						  uint32_t bytes, uint32_t,
						  uint32_t group,
						  uint32_t thread)
{
	group_sync(group);
	if (g->here)
		for (uint32_t at = thread * 16; at < bytes;
		     at += GROUP_THREADS * 16)
			*(uint4 *)(g->rows + at) = *(const uint4 *)(from + at);
	group_sync(group);
}
#endif

/* Will the chunk come?  By one thread. */
static __device__ int await_chunk(const struct ring_task &t, uint32_t seq,
				  uint32_t chunk, uint64_t begin)
{
	const uint32_t *flag = &t.ring.slot->flags[chunk].value;
	uint32_t value;

	for (;;) {
		value = load_acquire(flag);
		if (value == (seq << 2 | (uint32_t)ENGRAM_RING_ROWS))
			return 1;
		if (value == (seq << 2 | (uint32_t)ENGRAM_RING_REFUSED)) {
			atomicOr(&t.ring.state->missing, MISSING);
			return 0;
		}
		if (value == (seq << 2 | (uint32_t)ENGRAM_RING_GIVEN_UP) ||
		    now_ns() - begin > t.timeout_ns) {
			atomicOr(&t.ring.state->missing, MISSING | LATE);
			return 0;
		}
	}
}

/* May this batch be posted?  Asked only if it is not plain: the first block
 * finds out, the others wait for it. */
static __device__ int decide(const struct ring_task &t, uint32_t seq)
{
	uint32_t *decision = &t.ring.state->decision, value;
	__shared__ int idle;

	if (blockIdx.x == 0) {
		if (threadIdx.x == 0)
			idle = !t.ring.state->unsettled || await_idle(t);
		__syncthreads();
		/* once in 2^30 batches: no flag may be that old */
		clear_flags(t, seq, idle);
		if (threadIdx.x == 0)
			atomicExch(decision, seq << 1 | (uint32_t)idle);
		return idle;
	}
	if (threadIdx.x == 0) {
		while (value = *(volatile uint32_t *)decision,
		       value >> 1 != seq)
			;
		__threadfence();
		idle = value & 1;
	}
	__syncthreads();
	return idle;
}

/* Chunks are dealt out to groups in turn, those of one block far apart: the
 * first ones come at about the same time. */
struct share {
	uint32_t first, step; /* chunks */
	uint32_t group, thread;
	uint64_t begin;
};

static __device__ void post_chunks(const struct ring_task &t,
				   const struct engram_rows &rows, uint32_t seq,
				   const struct share &s, int post)
{
	uint32_t mine =
		t.flags > s.first ? (t.flags - s.first - 1) / s.step + 1 : 0;
	uint32_t end = (mine * t.flag_rows + WARP - 1) / WARP * WARP;
	uint32_t misses = 0;

	if (blockIdx.x == 0 && post &&
	    threadIdx.x >= THREADS - ENGRAM_RING_POST_WORDS)
		write_post(t, t.ring.slot, seq,
			   threadIdx.x - (THREADS - ENGRAM_RING_POST_WORDS));
	for (uint32_t i = s.thread; i < end; i += GROUP_THREADS) {
		int64_t at = (int64_t)(s.first + i / t.flag_rows * s.step) *
				     t.flag_rows +
			     i % t.flag_rows;

		if (i < mine * t.flag_rows && at < t.posted_rows)
			write_id(t, rows, seq, at, post, &misses);
	}
	count_misses(t.lookup.args.misses, misses);
}

/* Fetch a chunk that engramd did not deliver from the rescue slot; by its
 * group. */
static __device__ void rescue_chunk(const struct ring_task &t, uint32_t seq,
				    struct group *g, uint32_t chunk,
				    uint32_t count, uint32_t *parity,
				    const struct share &s)
{
	int64_t first = (int64_t)chunk * t.flag_rows;
	uint32_t bytes = (count * RECORD_BYTES + 15) / 16 * 16;
	const uint8_t *from = t.ring.rescue_rows + first * RECORD_BYTES;

	group_sync(s.group);
	post_rescue(t, seq, first, count, s.thread, GROUP_THREADS);
	if (s.thread == 0) {
		g->here = await_rescue(t, seq, chunk);
		if (g->here)
			count_rows(&t.ring.counters->fallback, count);
		fetch_rows(g, from, bytes);
	}
	await_rows(g, from, bytes, *parity, s.group, s.thread);
	*parity ^= 1;
}

/* One chunk, by its group: await, fetch, and decode it; or read its rows from
 * the table. */
template <bool RAW>
static __device__ void take_chunk(const struct ring_task &t,
				  const struct engram_rows &rows, uint32_t seq,
				  int posted, struct group *g, uint32_t chunk,
				  uint32_t *parity, const struct share &s)
{
	int64_t first = (int64_t)chunk * t.flag_rows;
	uint32_t left = t.posted_rows - (uint32_t)first;
	uint32_t count = left < t.flag_rows ? left : t.flag_rows;
	/* a multiple of 16; the ring has room behind */
	uint32_t bytes = (count * RECORD_BYTES + 15) / 16 * 16;
	const uint8_t *from = t.ring.rows + first * RECORD_BYTES;
	uint32_t lane = threadIdx.x % WARP, warp = s.thread / WARP;

	if (s.thread == 0) {
		g->here = posted && await_chunk(t, seq, chunk, s.begin);
		fetch_rows(g, from, bytes);
	}
	await_rows(g, from, bytes, *parity, s.group, s.thread);
	*parity ^= 1;
	if (!g->here && !rows.codes && t.ring.rescue)
		rescue_chunk(t, seq, g, chunk, count, parity, s);
	if (g->here)
		for (uint32_t i = warp; i < count; i += GROUP_WARPS)
			emit_row<RAW>(t.lookup, first + i,
				      g->rows + i * RECORD_BYTES, lane);
	else
		for (uint32_t i = warp * DEPTH; i < count;
		     i += GROUP_WARPS * DEPTH)
			tile_of_table<true, RAW>(
				t, rows, first + i,
				count - i < DEPTH ? count - i : DEPTH, lane);
	group_sync(s.group);
}

template <bool RAW>
static __device__ void lookup_ring(const struct ring_task &t,
				   const struct engram_rows &rows, uint32_t seq,
				   int posted)
{
	__shared__ struct group groups[GROUPS];
	struct share s = {
		.step = t.ring_blocks * GROUPS,
		.group = threadIdx.x / GROUP_THREADS,
		.thread = threadIdx.x % GROUP_THREADS,
		.begin = now_ns(),
	};
	struct group *g = &groups[s.group];
	uint32_t parity = 0;

	s.first = blockIdx.x + s.group * t.ring_blocks;
	if (s.thread == 0)
		group_init(g);
	if (!t.posted_seq)
		post_chunks(t, rows, seq, s, posted);
	group_sync(s.group);
	for (uint32_t chunk = s.first; chunk < t.flags; chunk += s.step)
		take_chunk<RAW>(t, rows, seq, posted, g, chunk, &parity, s);
}

/* The last rows, over UVA. */
template <bool RAW>
static __device__ void lookup_own(const struct ring_task &t,
				  const struct engram_rows &rows)
{
	uint32_t lane = threadIdx.x % WARP, misses = 0;
	int64_t step = (int64_t)(gridDim.x - t.ring_blocks) * WARPS * DEPTH;
	int64_t first =
		t.posted_rows + ((int64_t)(blockIdx.x - t.ring_blocks) * WARPS +
				 threadIdx.x / WARP) *
					DEPTH;
	const int64_t none = t.lookup.num_rows;

	for (; first < t.lookup.num_rows; first += step) {
		int64_t left = t.lookup.num_rows - first;
		uint32_t count = left < DEPTH ? (uint32_t)left : DEPTH;
		struct wanted w =
			fetch_id(t.lookup, lane < DEPTH ? first + lane : none);
		int64_t index = find_row(t.lookup, rows, w, &misses);

		tile_of_256<RAW>(t.lookup, rows, first, count, index, lane);
		if (RAW && t.lookup.raw.scales)
			store_scales(t.lookup, rows, first, count, index, lane);
	}
	count_misses(t.lookup.args.misses, misses);
}

template <bool RAW>
static __global__ void __launch_bounds__(THREADS, 1)
	lookup_kernel(const __grid_constant__ struct ring_task t)
{
	struct engram_rows rows = rows_now(t.lookup);
	struct engram_cuda_ring_state *s = t.ring.state;
	uint32_t seq = next_seq(t);
	int plain = t.posted_seq || (!s->unsettled && seq != 1), posted;
	uint32_t missing;

	if (blockIdx.x < t.ring_blocks)
		lookup_ring<RAW>(t, rows, seq, plain || decide(t, seq));
	else
		lookup_own<RAW>(t, rows);
	__syncthreads();
	if (threadIdx.x)
		return;
	__threadfence();
	/* every block has read the number by now */
	if (atomicAdd(&s->left, 1) != gridDim.x - 1)
		return;
	__threadfence();
	posted = plain || (*(volatile uint32_t *)&s->decision & 1);
	missing = atomicExch(&s->missing, 0);
	if (missing || !posted)
		tell_counts(t);
	if (t.posted_seq) {
		s->left = 0;
		return;
	}
	end_launch(t, seq, posted);
	s->unsettled = !posted || missing & LATE;
}

/* ---- the interface ---- */

int engram_cuda_ring_can_lookup(const struct engram_rows *rows)
{
	return rows->dim == 256 && rows->dtype == ENGRAM_F8_E4M3 &&
	       rows->scale_scheme == ENGRAM_SCALE_UE8M0_BLOCK &&
	       rows->block_size == 32;
}

enum engram_status engram_cuda_ring_lookup(
	const struct engram_cuda_ring *ring,
	const struct engram_cuda_ring_batch *batch, engram_stream stream,
	struct engram_error *err)
{
	struct ring_task t = {};
	enum engram_status status = ring_make_task(ring, batch, &t, err);
	unsigned int own = 0;

	if (status || !t.lookup.num_rows)
		return status;
	if (!engram_cuda_ring_can_lookup(&t.lookup.rows) ||
	    !table_is_256(&t.lookup))
		return engram_invalid(err, "source",
				      "rows of another kind than 256 fp8 codes "
				      "with 8 scales, or not aligned",
				      "use engram_cuda_ring_post");
	if (batch->flag_rows > ENGRAM_CUDA_RING_CHUNK_ROWS || !t.flags ||
	    batch->own_rows < 0)
		return engram_invalid(err, "flag_rows",
				      "chunks of too many rows, or none",
				      "use smaller ones");
	t.ring_blocks = (t.flags + GROUPS - 1) / GROUPS;
	t.ring_blocks =
		t.ring_blocks < RING_BLOCKS ? t.ring_blocks : RING_BLOCKS;
	if (batch->own_rows) {
		own = (unsigned int)((batch->own_rows + OWN_ROWS - 1) /
				     OWN_ROWS);
		own = own < OWN_BLOCKS ? own : OWN_BLOCKS;
	}
	if (batch->out)
		lookup_kernel<false>
			<<<t.ring_blocks + own, THREADS, 0, stream>>>(t);
	else
		lookup_kernel<true>
			<<<t.ring_blocks + own, THREADS, 0, stream>>>(t);
	return engram_cuda_launched("ring lookup kernel", err);
}
