/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The lookup kernels.  A persistent grid of few, full blocks: random rows of
 * host memory come at the rate of the GPU's address translation, which two
 * multiprocessors with all the loads that they can have under way use up, and
 * every multiprocessor taken is taken from the model.  The ids of a warp's next
 * rows are fetched while its rows are under way.
 */
#ifndef ENGRAM_CUDA_LOOKUP_CUH
#define ENGRAM_CUDA_LOOKUP_CUH

#include "engram_cuda_kernels.h"
#include "rows.cuh"

/* Loads in flight for each thread, and threads: with 64 registers each, what
 * one multiprocessor holds. */
#define DEPTH	4
#define THREADS 1024
#define WARP	32
#define WARPS	(THREADS / WARP)

struct lookup_task {
	struct engram_rows rows;
	const struct engram_cuda_descriptor *descriptor;
	/* of rows that were staged: whose tensor scale they have */
	const struct engram_cuda_descriptor *scaled_by;
	struct engram_lookup_args args;
	int every;	   /* no ids: all stored rows in their order */
	int64_t first_row; /* of the output, [num_tokens, local_heads] */
	int64_t num_rows;  /* the one past the last; below 2^32, so that
			    * divisions are short */
	uint16_t *out;	   /* bf16, or NULL: */
	struct engram_raw_out raw;
};

/* The rows as they are now. */
static __device__ __forceinline__ struct engram_rows rows_now(
	const struct lookup_task &task)
{
	struct engram_rows rows = task.rows;

	if (task.descriptor) {
		const struct engram_rows *now = &task.descriptor->rows;

		rows.codes = now->codes;
		rows.scales = now->scales;
		rows.row_begin = now->row_begin;
		rows.row_end = now->row_end;
		rows.tensor_scale = now->tensor_scale;
	}
	if (task.scaled_by)
		rows.tensor_scale = task.scaled_by->rows.tensor_scale;
	return rows;
}

/* A row of the output and the id that it asks for.  Apart from its use, so
 * that the load of the id is under way while other rows are read. */
struct wanted {
	int64_t at;
	int32_t id;
	int real; /* neither padding nor past the end */
};

static __device__ __forceinline__ struct wanted fetch_id(
	const struct lookup_task &task, int64_t at)
{
	const struct engram_lookup_args *args = &task.args;
	struct wanted wanted = {at, 0, at < task.num_rows};
	uint32_t head;
	int64_t token;

	if (task.every || !wanted.real)
		return wanted;
	token = (uint32_t)at / args->local_heads;
	head = args->head_begin + (uint32_t)at % args->local_heads;
	wanted.real = engram_row_is_real(args, head);
	if (wanted.real)
		wanted.id = args->ids[token * args->ids_token_stride +
				      head * args->ids_head_stride];
	return wanted;
}

/* The index of the stored row, or -1. */
static __device__ __forceinline__ int64_t
find_row(const struct lookup_task &task, const struct engram_rows &rows,
	 struct wanted wanted, uint32_t *misses)
{
	if (!wanted.real)
		return -1;
	if (task.every)
		return wanted.at;
	if (engram_row_is_here(&rows, wanted.id))
		return wanted.id - rows.row_begin;
	++*misses;
	return -1;
}

/* Once a row is read it is not read again soon: leave the first-level cache
 * alone. */
template <int ALIGN>
static __device__ __forceinline__ uint2 load_unit(const uint8_t *from)
{
	uint2 unit = make_uint2(0, 0);

	if (ALIGN == 8) {
		asm("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
		    : "=r"(unit.x), "=r"(unit.y)
		    : "l"(from));
	} else if (ALIGN == 4) {
		unit.x = __ldg((const uint32_t *)from);
		unit.y = __ldg((const uint32_t *)from + 1);
	} else {
#pragma unroll
		for (int i = 0; i < 4; i++) {
			unit.x |= (uint32_t)__ldg(from + i) << 8 * i;
			unit.y |= (uint32_t)__ldg(from + 4 + i) << 8 * i;
		}
	}
	return unit;
}

/* Unit `at` of the output. */
template <bool WIDE, bool RAW>
static __device__ __forceinline__ void store_unit(
	const struct lookup_task &task, int64_t at, uint2 codes, float scale)
{
	if (RAW)
		__stcs((uint2 *)task.raw.codes + at, codes);
	else if (WIDE)
		__stcs((uint2 *)task.out + at,
		       engram_decode_bf16(codes, scale));
	else
		__stcs((uint4 *)task.out + at, engram_decode_fp8(codes, scale));
}

/* The scales of a tile's rows as stored. */
static __device__ __forceinline__ void store_scales(
	const struct lookup_task &task, const struct engram_rows &rows,
	int64_t first, uint32_t count, int64_t index, uint32_t lane)
{
	uint32_t each = engram_row_scales(&rows);
	uint32_t heads = task.args.local_heads;
	const uint8_t *scales = (const uint8_t *)rows.scales;

	for (uint32_t base = 0; base < count * each; base += WARP) {
		uint32_t i = base + lane, row = i / each, s = i % each;
		int64_t stored = __shfl_sync(~0u, index, row % WARP);
		int64_t token = (uint32_t)(first + row) / heads;
		int64_t col =
			(int64_t)((uint32_t)(first + row) % heads) * each + s;

		if (i >= count * each)
			continue;
		task.raw.scales[engram_raw_scale_place(task.raw.scale_layout,
						       token, col,
						       (int64_t)heads * each)] =
			stored < 0
				? 0
				: scales[stored * rows.scale_stride_bytes + s];
	}
}

static __device__ __forceinline__ void count_misses(uint64_t *counter,
						    uint32_t misses)
{
	misses = __reduce_add_sync(~0u, misses);
	if (misses && counter && threadIdx.x % WARP == 0)
		atomicAdd((unsigned long long *)counter,
			  (unsigned long long)misses);
}

/* A tile of DEPTH rows of 256 fp8 codes, a row at a time across
 * the warp. */
template <bool RAW>
static __device__ __forceinline__ void tile_of_256(
	const struct lookup_task &task, const struct engram_rows &rows,
	int64_t first, uint32_t count, int64_t index, uint32_t lane)
{
	const uint8_t *codes = (const uint8_t *)rows.codes;
	uint2 unit[DEPTH], scales = make_uint2(0, 0);

#pragma unroll
	for (int k = 0; k < DEPTH; k++) {
		int64_t stored = __shfl_sync(~0u, index, k);

		unit[k] = make_uint2(0, 0);
		if (stored >= 0)
			unit[k] = load_unit<ENGRAM_UNIT_BYTES>(
				codes + stored * rows.code_stride_bytes +
				lane * ENGRAM_UNIT_BYTES);
	}
	if (index >= 0 && lane < DEPTH)
		scales = load_unit<ENGRAM_UNIT_BYTES>(
			(const uint8_t *)rows.scales +
			index * rows.scale_stride_bytes);
#pragma unroll
	for (int k = 0; k < DEPTH; k++) {
		uint32_t low = __shfl_sync(~0u, scales.x, k);
		uint32_t high = __shfl_sync(~0u, scales.y, k);
		/* four lanes a block of 32 codes */
		uint32_t byte = (lane < 16 ? low : high) >> lane / 4 % 4 * 8;

		if (k < count)
			store_unit<false, RAW>(
				task, (first + k) * WARP + lane, unit[k],
				engram_ue8m0_to_float((uint8_t)byte));
	}
}

/* A tile of rows of any whole number of units, as one run of units. */
template <int ALIGN, bool WIDE, bool RAW>
static __device__ __forceinline__ void tile_of_units(
	const struct lookup_task &task, const struct engram_rows &rows,
	int scaled, uint32_t units, int64_t first, uint32_t count,
	int64_t index, uint32_t lane)
{
	const uint8_t *codes = (const uint8_t *)rows.codes;
	const uint8_t *scales = (const uint8_t *)rows.scales;
	/* elements of a unit */
	const uint32_t width = ENGRAM_UNIT_BYTES / (WIDE ? 2 : 1);

	for (uint32_t base = 0; base < count * units; base += WARP * DEPTH) {
		uint2 unit[DEPTH];
		uint8_t byte[DEPTH];

#pragma unroll
		for (int k = 0; k < DEPTH; k++) {
			uint32_t i = base + k * WARP + lane;
			uint32_t row = i / units, at = i % units;
			int64_t stored = __shfl_sync(~0u, index, row % WARP);

			unit[k] = make_uint2(0, 0);
			byte[k] = 0;
			if (stored < 0 || i >= count * units)
				continue;
			unit[k] = load_unit<ALIGN>(
				codes + stored * rows.code_stride_bytes +
				at * ENGRAM_UNIT_BYTES);
			if (scaled)
				byte[k] =
					__ldg(scales +
					      stored * rows.scale_stride_bytes +
					      at * width / rows.block_size);
		}
#pragma unroll
		for (int k = 0; k < DEPTH; k++) {
			uint32_t i = base + k * WARP + lane;
			float scale = rows.scale_scheme == ENGRAM_SCALE_TENSOR
					      ? rows.tensor_scale
					      : 1.0f;

			if (scaled)
				scale = engram_ue8m0_to_float(byte[k]);
			if (i < count * units)
				store_unit<WIDE, RAW>(task, first * units + i,
						      unit[k], scale);
		}
	}
}

/* Rows of any dim, alignment and block size, element by element. */
static __device__ void tile_of_elements(const struct lookup_task &task,
					const struct engram_rows &rows,
					int64_t first, uint32_t count,
					int64_t index, uint32_t lane)
{
	int scaled = rows.scale_scheme == ENGRAM_SCALE_UE8M0_BLOCK;
	uint32_t bytes = rows.dtype == ENGRAM_BF16 ? 2 : 1;

	for (uint32_t row = 0; row < count; row++) {
		int64_t stored = __shfl_sync(~0u, index, row);
		const uint8_t *codes = (const uint8_t *)rows.codes +
				       stored * rows.code_stride_bytes;
		const uint8_t *scales = (const uint8_t *)rows.scales +
					stored * rows.scale_stride_bytes;
		int64_t to = (first + row) * rows.dim;

		for (uint32_t at = lane; task.out && at < rows.dim;
		     at += WARP) {
			float scale = rows.scale_scheme == ENGRAM_SCALE_TENSOR
					      ? rows.tensor_scale
					      : 1.0f;

			if (scaled && stored >= 0)
				scale = engram_ue8m0_to_float(
					scales[at / rows.block_size]);
			task.out[to + at] =
				stored < 0
					? 0
					: engram_decode_one(codes, rows.dtype,
							    at, scale);
		}
		for (uint32_t at = lane; !task.out && at < rows.dim * bytes;
		     at += WARP)
			task.raw.codes[to * bytes + at] =
				stored < 0 ? 0 : codes[at];
	}
}

#endif
