/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A large lookup through a ring, for which no kernel waits: a kernel posts, the
 * copy engine fetches what the stream waits for, and another kernel sees to
 * what did not come.
 */
#include "ring.cuh"

#define POST_BLOCKS   8
#define POST_ROWS     4096 /* for each of them */
#define REPAIR_BLOCKS 2

static __global__ void __launch_bounds__(THREADS, 1)
	post_kernel(const __grid_constant__ struct ring_task t)
{
	struct engram_rows rows = rows_now(t.lookup);
	uint32_t seq = next_seq(t), misses = 0;
	struct engram_cuda_ring_state *s = t.ring.state;
	int64_t end = (t.lookup.num_rows + WARP - 1) / WARP * WARP;
	__shared__ int idle;

	if (blockIdx.x == 0) {
		if (threadIdx.x == 0)
			idle = !s->unsettled || await_idle(t);
		__syncthreads();
		/* A stream waits for the low bits of a flag: those of this
		 * batch are to be zeros before anybody raises one. */
		clear_flags(t, seq, idle);
		if (idle && threadIdx.x < ENGRAM_RING_POST_WORDS)
			write_post(t, t.ring.slot, seq, threadIdx.x);
		if (threadIdx.x == 0)
			s->decision = seq << 1 | (uint32_t)idle;
	}
	/* whole warps, for the sum */
	for (int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x; at < end;
	     at += (int64_t)gridDim.x * THREADS)
		write_id(t, rows, seq, at, at < t.lookup.num_rows, &misses);
	count_misses(t.lookup.args.misses, misses);
	__syncthreads();
	if (threadIdx.x)
		return;
	__threadfence();
	/* every block has read the number by now */
	if (atomicAdd(&s->left, 1) != gridDim.x - 1)
		return;
	__threadfence();
	end_launch(t, seq, *(volatile uint32_t *)&s->decision & 1);
}

/* ---- what a large lookup did not get ---- */

/* Rows of a chunk that lie in the rescue slot, or zeros. */
template <bool OF_256, bool RAW>
static __device__ void emit_rescued(const struct ring_task &t,
				    const struct engram_rows &rows,
				    int64_t begin, uint32_t count, int here)
{
	struct engram_rows from = rows;
	uint32_t lane = threadIdx.x % WARP;

	from.codes = t.ring.rescue_rows;
	from.scales = t.ring.rescue_rows +
		      rows.dim * (rows.dtype == ENGRAM_BF16 ? 2 : 1);
	from.code_stride_bytes = from.scale_stride_bytes = t.ring.row_stride;
	for (uint32_t i = threadIdx.x / WARP * DEPTH; i < count;
	     i += WARPS * DEPTH) {
		uint32_t n = count - i < DEPTH ? count - i : DEPTH;
		int64_t first = begin + i;
		int64_t index = here && lane < n ? first + lane : -1;

		if (OF_256)
			tile_of_256<RAW>(t.lookup, from, first, n, index, lane);
		else
			tile_of_elements(t.lookup, from, first, n, index, lane);
		if (RAW && t.lookup.raw.scales &&
		    rows.scale_scheme == ENGRAM_SCALE_UE8M0_BLOCK)
			store_scales(t.lookup, from, first, n, index, lane);
	}
}

/* What is missing, chunk by chunk, a block each; what has not come from there
 * either stays missing.  All blocks take it that the others' chunks come. */
template <bool OF_256, bool RAW>
static __device__ void repair_rescued(const struct ring_task &t,
				      const struct engram_rows &rows,
				      uint32_t seq, uint8_t *missing)
{
	__shared__ int here;

	for (uint32_t chunk = 0; chunk < t.flags; chunk++) {
		int64_t first = (int64_t)chunk * t.flag_rows;
		uint32_t left = (uint32_t)(t.lookup.num_rows - first);
		uint32_t count = left < t.flag_rows ? left : t.flag_rows;
		int wanted = missing[chunk];

		__syncthreads();
		if (threadIdx.x == 0)
			missing[chunk] = 0;
		if (!wanted || chunk % gridDim.x != blockIdx.x)
			continue;
		post_rescue(t, seq, first, count, threadIdx.x, THREADS);
		if (threadIdx.x == 0) {
			here = await_rescue(t, seq, chunk);
			count_rows(here ? &t.ring.counters->fallback
					: &t.ring.counters->failed,
				   count);
		}
		__syncthreads();
		emit_rescued<OF_256, RAW>(t, rows, first, count, here);
	}
	__syncthreads();
}

template <bool OF_256, bool RAW>
static __global__ void __launch_bounds__(THREADS, 1)
	repair_kernel(const __grid_constant__ struct ring_task t)
{
	__shared__ uint8_t missing[ENGRAM_RING_FLAGS];
	struct engram_cuda_ring_state *s = t.ring.state;
	uint32_t seq = t.posted_seq ? t.posted_seq : s->seq;
	uint32_t lane = threadIdx.x % WARP;
	int64_t first =
		((int64_t)blockIdx.x * WARPS + threadIdx.x / WARP) * DEPTH;
	struct engram_rows rows;
	int bad = 0, late = 0;

	for (uint32_t i = threadIdx.x; i < t.flags; i += THREADS) {
		uint32_t value = load_acquire(&t.ring.slot->flags[i].value);

		missing[i] = value != (seq << 2 | (uint32_t)ENGRAM_RING_ROWS);
		bad |= missing[i];
		late |= missing[i] &&
			value != (seq << 2 | (uint32_t)ENGRAM_RING_REFUSED);
	}
	late = __syncthreads_or(late);
	if (threadIdx.x == 0 && blockIdx.x == 0)
		s->unsettled = late != 0;
	if (!__syncthreads_or(bad))
		return;
	rows = rows_now(t.lookup);
	if (!rows.codes && t.ring.rescue)
		repair_rescued<OF_256, RAW>(t, rows, seq, missing);
	for (; first < t.lookup.num_rows;
	     first += (int64_t)gridDim.x * WARPS * DEPTH) {
		int64_t left = t.lookup.num_rows - first;
		uint32_t count = left < DEPTH ? (uint32_t)left : DEPTH;

		if (missing[(uint32_t)first / t.flag_rows])
			tile_of_table<OF_256, RAW>(t, rows, first, count, lane);
	}
	__syncthreads();
	if (threadIdx.x)
		return;
	__threadfence();
	if (atomicAdd(&s->left, 1) != gridDim.x - 1)
		return;
	s->left = 0;
	__threadfence();
	tell_counts(t);
}

/* ---- the interface ---- */

enum engram_status ring_make_task(const struct engram_cuda_ring *ring,
				  const struct engram_cuda_ring_batch *batch,
				  struct ring_task *t, struct engram_error *err)
{
	const uint16_t *out =
		batch->out ? batch->out : (const uint16_t *)batch->raw.codes;
	enum engram_status status =
		lookup_check(batch->source, batch->args, out, err);

	if (!status && !batch->out)
		status = engram_check_layout(&batch->raw, err);
	if (status)
		return status;
	t->lookup = lookup_task_of(batch->source, batch->args);
	t->lookup.out = batch->out;
	t->lookup.raw = batch->raw;
	t->ring = *ring;
	t->layer_id = batch->layer_id;
	t->posted_seq = batch->posted_seq;
	t->flag_rows = batch->flag_rows;
	t->posted_rows = (uint32_t)(t->lookup.num_rows - batch->own_rows);
	t->timeout_ns = batch->timeout_ns;
	if (!batch->flag_rows || batch->flag_rows % ENGRAM_RING_FLAG_UNIT)
		return engram_invalid(err, "flag_rows", "no multiple of 8",
				      "use engram_ring_flag_rows");
	t->flags = (t->posted_rows + batch->flag_rows - 1) / batch->flag_rows;
	if (t->flags <= ENGRAM_RING_FLAGS)
		return ENGRAM_OK;
	return engram_invalid(err, "flag_rows", "too many chunks",
			      "use engram_ring_flag_rows");
}

enum engram_status engram_cuda_ring_post(
	const struct engram_cuda_ring *ring,
	const struct engram_cuda_ring_batch *batch, engram_stream stream,
	struct engram_error *err)
{
	struct ring_task t = {};
	enum engram_status status = ring_make_task(ring, batch, &t, err);
	int64_t blocks = (t.lookup.num_rows + POST_ROWS - 1) / POST_ROWS;

	if (status || !t.flags)
		return status;
	blocks = blocks < POST_BLOCKS ? blocks : POST_BLOCKS;
	post_kernel<<<(unsigned int)blocks, THREADS, 0, stream>>>(t);
	return engram_cuda_launched("ring post kernel", err);
}

enum engram_status engram_cuda_ring_decode(
	const struct engram_cuda_ring *ring,
	const struct engram_cuda_ring_batch *batch, const uint8_t *staged,
	int64_t begin, int64_t end, engram_stream stream,
	struct engram_error *err)
{
	struct ring_task t = {};
	enum engram_status status = ring_make_task(ring, batch, &t, err);
	struct engram_rows *rows = &t.lookup.rows;

	if (status)
		return status;
	rows->codes = staged;
	rows->code_stride_bytes = ring->row_stride;
	if (rows->scale_scheme == ENGRAM_SCALE_UE8M0_BLOCK) {
		rows->scales = staged +
			       rows->dim * (rows->dtype == ENGRAM_BF16 ? 2 : 1);
		rows->scale_stride_bytes = ring->row_stride;
	}
	rows->row_begin = 0;
	rows->row_end = t.lookup.num_rows;
	t.lookup.scaled_by = t.lookup.descriptor;
	t.lookup.descriptor = NULL;
	t.lookup.every = 1;
	t.lookup.first_row = begin;
	t.lookup.num_rows = end;
	return lookup_resident(&t.lookup, stream, err);
}

template <bool RAW>
static void start_repair(const struct ring_task *t, engram_stream stream)
{
	if (table_is_256(&t->lookup))
		repair_kernel<true, RAW>
			<<<REPAIR_BLOCKS, THREADS, 0, stream>>>(*t);
	else
		repair_kernel<false, RAW>
			<<<REPAIR_BLOCKS, THREADS, 0, stream>>>(*t);
}

enum engram_status engram_cuda_ring_repair(
	const struct engram_cuda_ring *ring,
	const struct engram_cuda_ring_batch *batch, engram_stream stream,
	struct engram_error *err)
{
	struct ring_task t = {};
	enum engram_status status = ring_make_task(ring, batch, &t, err);

	if (status || !t.flags)
		return status;
	if (batch->out)
		start_repair<false>(&t, stream);
	else
		start_repair<true>(&t, stream);
	return engram_cuda_launched("ring repair kernel", err);
}
