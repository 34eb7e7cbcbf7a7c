/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"
#include "launch.h"
#include "lookup.cuh"
#include "lookup_plan.h"

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
		task.first_row +
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
	count_misses(task.args.misses, misses);
}

/* ---- which kernel ---- */

template <enum path PATH, int ALIGN, bool WIDE>
static void start(const struct lookup_task *task,
		  const struct lookup_plan *plan, unsigned int blocks,
		  engram_stream stream)
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
static void start_units(const struct lookup_task *task,
			const struct lookup_plan *plan, unsigned int blocks,
			engram_stream stream)
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
	struct lookup_plan plan = lookup_make_plan(task);
	enum engram_status status;
	unsigned int blocks;
	int64_t rows = task->num_rows - task->first_row;

	if (!rows)
		return ENGRAM_OK;
	status = lookup_blocks(grid, resident,
			       (rows + plan.tile_rows - 1) / plan.tile_rows,
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

enum engram_status engram_cuda_lookup(const struct engram_cuda_source *source,
				      const struct engram_lookup_args *args,
				      uint16_t *out,
				      const struct engram_cuda_grid *grid,
				      engram_stream stream,
				      struct engram_error *err)
{
	enum engram_status status = lookup_check(source, args, out, err);
	struct lookup_task task;

	if (status)
		return status;
	task = lookup_task_of(source, args);
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
		lookup_check(source, args, (uint16_t *)out->codes, err);
	struct lookup_task task;

	if (!status)
		status = engram_check_layout(out, err);
	if (status)
		return status;
	task = lookup_task_of(source, args);
	task.raw = *out;
	status = clear_scales(&task, stream, err);
	if (status)
		return status;
	return launch(&task, grid, source->resident, stream, err);
}

enum engram_status lookup_resident(struct lookup_task *task,
				   engram_stream stream,
				   struct engram_error *err)
{
	return launch(task, NULL, 1, stream, err);
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
	if (num_rows > UINT32_MAX)
		return engram_invalid(err, "num_rows",
				      "more than 2^32 rows for one launch",
				      "pass fewer at once");
	task.rows = *rows;
	task.every = 1;
	task.num_rows = num_rows;
	task.out = out;
	return launch(&task, NULL, 1, stream, err);
}
