/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"
#include "launch.h"
#include "lookup.cuh"

/* The smallest grid that reads random rows of host memory at full speed, and
 * the one past which nothing is gained (tests/bench/README.md). */
#define BACKGROUND_BLOCKS 2
#define FOREGROUND_BLOCKS 8

enum path {
	PATH_256, /* dim 256 fp8, blocks of 32 */
	PATH_UNITS,
	PATH_ELEMENTS
};

struct plan {
	enum path path;
	int align; /* of units: 8, 4 or 1 */
	uint32_t units, tile_rows;
};

template <enum path PATH, int ALIGN, bool WIDE, bool RAW>
static __global__ void __launch_bounds__(THREADS, 1)
	lookup_kernel(const __grid_constant__ struct lookup_task task,
		      uint32_t units, uint32_t tile_rows)
{
	struct engram_rows rows = rows_now(task);
	int scaled = rows.scale_scheme == ENGRAM_SCALE_UE8M0_BLOCK;
	uint32_t lane = threadIdx.x % WARP, misses = 0;
	int64_t step = (int64_t)gridDim.x * WARPS * tile_rows;
	int64_t first =
		((int64_t)blockIdx.x * WARPS + threadIdx.x / WARP) * tile_rows;
	const int64_t none = task.num_rows;
	struct wanted next =
		fetch_id(task, lane < tile_rows ? first + lane : none);

	for (; first < task.num_rows; first += step) {
		int64_t left = task.num_rows - first;
		uint32_t count = left < tile_rows ? (uint32_t)left : tile_rows;
		int64_t index = find_row(task, rows, next, &misses);

		next = fetch_id(task,
				lane < tile_rows ? first + step + lane : none);
		if (PATH == PATH_256)
			tile_of_256<RAW>(task, rows, first, count, index, lane);
		else if (PATH == PATH_UNITS)
			tile_of_units<ALIGN, WIDE, RAW>(task, rows, scaled,
							units, first, count,
							index, lane);
		else
			tile_of_elements(task, rows, first, count, index, lane);
		if (RAW && task.raw.scales && scaled)
			store_scales(task, rows, first, count, index, lane);
	}
	count_misses(task, misses);
}

/* ---- which kernel ---- */

static int aligned(const void *pointer, int64_t stride, int64_t to)
{
	return (intptr_t)pointer % to == 0 && stride % to == 0;
}

static int common_alignment(const struct engram_rows *rows, int scales_too)
{
	for (int to = 8; to > 1; to -= 4)
		if (aligned(rows->codes, rows->code_stride_bytes, to) &&
		    (!scales_too ||
		     aligned(rows->scales, rows->scale_stride_bytes, to)))
			return to;
	return 1;
}

static struct plan make_plan(const struct lookup_task *task)
{
	const struct engram_rows *rows = &task->rows;
	int scaled = rows->scale_scheme == ENGRAM_SCALE_UE8M0_BLOCK;
	uint32_t element = rows->dtype == ENGRAM_BF16 ? 2 : 1;
	uint32_t width = ENGRAM_UNIT_BYTES / element;
	struct plan plan = {PATH_ELEMENTS, 1, 0, WARP};
	/* units are written whole */
	uintptr_t to =
		task->out ? (uintptr_t)task->out : (uintptr_t)task->raw.codes;
	uintptr_t out_align = task->out ? 16 / element : ENGRAM_UNIT_BYTES;

	if (rows->dim % width || to % out_align ||
	    (scaled && rows->block_size % width))
		return plan;
	plan.path = PATH_UNITS;
	plan.units = rows->dim / width;
	plan.align = common_alignment(rows, 0);
	plan.tile_rows = WARP * DEPTH / plan.units;
	plan.tile_rows = plan.tile_rows < 1	 ? 1
			 : plan.tile_rows > WARP ? WARP
						 : plan.tile_rows;
	if (scaled && rows->dim == 256 && rows->block_size == 32 &&
	    rows->dtype == ENGRAM_F8_E4M3 &&
	    common_alignment(rows, 1) == ENGRAM_UNIT_BYTES)
		plan.path = PATH_256;
	return plan;
}

static enum engram_status choose_blocks(const struct engram_cuda_grid *grid,
					int resident, int64_t tiles,
					unsigned int *out,
					struct engram_error *err)
{
	int64_t needed = (tiles + WARPS - 1) / WARPS;
	int64_t blocks = grid ? grid->blocks : 0;
	enum engram_status status;
	int multiprocessors;

	if (!blocks && resident) {
		status = engram_cuda_multiprocessors(&multiprocessors, err);
		if (status)
			return status;
		blocks = (int64_t)multiprocessors * 2;
	}
	if (!blocks)
		blocks = grid && grid->hint == ENGRAM_CUDA_FOREGROUND
				 ? FOREGROUND_BLOCKS
				 : BACKGROUND_BLOCKS;
	*out = (unsigned int)(blocks < needed ? blocks : needed);
	return ENGRAM_OK;
}

template <enum path PATH, int ALIGN, bool WIDE>
static void start(const struct lookup_task *task, const struct plan *plan,
		  unsigned int blocks, engram_stream stream)
{
	if (task->out)
		lookup_kernel<PATH, ALIGN, WIDE, false>
			<<<blocks, THREADS, 0, stream>>>(*task, plan->units,
							 plan->tile_rows);
	else
		lookup_kernel<PATH, ALIGN, WIDE, true>
			<<<blocks, THREADS, 0, stream>>>(*task, plan->units,
							 plan->tile_rows);
}

template <bool WIDE>
static void start_units(const struct lookup_task *task, const struct plan *plan,
			unsigned int blocks, engram_stream stream)
{
	if (plan->align == 8)
		start<PATH_UNITS, 8, WIDE>(task, plan, blocks, stream);
	else if (plan->align == 4)
		start<PATH_UNITS, 4, WIDE>(task, plan, blocks, stream);
	else
		start<PATH_UNITS, 1, WIDE>(task, plan, blocks, stream);
}

static enum engram_status launch(struct lookup_task *task,
				 const struct engram_cuda_grid *grid,
				 int resident, engram_stream stream,
				 struct engram_error *err)
{
	struct plan plan = make_plan(task);
	enum engram_status status;
	unsigned int blocks;

	if (!task->num_rows)
		return ENGRAM_OK;
	if (task->num_rows > UINT32_MAX)
		return engram_invalid(err, "num_tokens",
				      "more than 2^32 rows for one launch",
				      "pass fewer tokens at once");
	status = choose_blocks(grid, resident,
			       (task->num_rows + plan.tile_rows - 1) /
				       plan.tile_rows,
			       &blocks, err);
	if (status)
		return status;
	if (plan.path == PATH_256)
		start<PATH_256, 8, false>(task, &plan, blocks, stream);
	else if (plan.path == PATH_ELEMENTS)
		start<PATH_ELEMENTS, 1, false>(task, &plan, blocks, stream);
	else if (task->rows.dtype == ENGRAM_BF16)
		start_units<true>(task, &plan, blocks, stream);
	else
		start_units<false>(task, &plan, blocks, stream);
	return engram_cuda_launched("lookup kernel", err);
}

/* ---- the interface ---- */

static struct lookup_task task_of(const struct engram_cuda_source *source,
				  const struct engram_lookup_args *args)
{
	struct lookup_task task = {};

	task.rows = source->rows;
	task.descriptor = source->descriptor;
	task.args = *args;
	task.num_rows = args->num_tokens * args->local_heads;
	return task;
}

enum engram_status engram_cuda_lookup(const struct engram_cuda_source *source,
				      const struct engram_lookup_args *args,
				      uint16_t *out,
				      const struct engram_cuda_grid *grid,
				      engram_stream stream,
				      struct engram_error *err)
{
	enum engram_status status =
		engram_check_lookup(&source->rows, args, out, err);
	struct lookup_task task;

	if (status)
		return status;
	task = task_of(source, args);
	task.out = out;
	return launch(&task, grid, source->resident, stream, err);
}

/* What fills up the tiles of scales. */
static enum engram_status clear_scales(const struct lookup_task *task,
				       engram_stream stream,
				       struct engram_error *err)
{
	const struct engram_raw_out *raw = &task->raw;
	size_t bytes = engram_raw_scale_bytes(
		&task->rows, task->args.num_tokens, task->args.local_heads,
		raw->scale_layout);

	if (!raw->scales || raw->scale_layout == ENGRAM_SCALES_PLAIN || !bytes)
		return ENGRAM_OK;
	return engram_cuda_status(
		cudaMemsetAsync(raw->scales, 0, bytes, stream),
		"clearing scales", err);
}

enum engram_status engram_cuda_lookup_raw(
	const struct engram_cuda_source *source,
	const struct engram_lookup_args *args, const struct engram_raw_out *out,
	const struct engram_cuda_grid *grid, engram_stream stream,
	struct engram_error *err)
{
	enum engram_status status =
		engram_check_raw(&source->rows, args, out, err);
	struct lookup_task task;

	if (status)
		return status;
	task = task_of(source, args);
	task.raw = *out;
	status = clear_scales(&task, stream, err);
	if (status)
		return status;
	return launch(&task, grid, source->resident, stream, err);
}

enum engram_status engram_cuda_decode(const struct engram_rows *rows,
				      int64_t num_rows, uint16_t *out,
				      engram_stream stream,
				      struct engram_error *err)
{
	enum engram_status status =
		engram_check_decode(rows, num_rows, out, err);
	struct lookup_task task = {};

	if (status)
		return status;
	task.rows = *rows;
	task.every = 1;
	task.num_rows = num_rows;
	task.out = out;
	return launch(&task, NULL, 1, stream, err);
}
