/* SPDX-License-Identifier: Apache-2.0 */
#include "lookup_plan.h"

#include "check.h"
#include "launch.h"

/* The smallest grid that reads random rows of host memory at full speed, and
 * the one past which nothing is gained (tests/bench/README.md). */
#define BACKGROUND_BLOCKS 2
#define FOREGROUND_BLOCKS 8

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

struct lookup_plan lookup_make_plan(const struct lookup_task *task)
{
	const struct engram_rows *rows = &task->rows;
	int scaled = rows->scale_scheme == ENGRAM_SCALE_UE8M0_BLOCK;
	uint32_t element = rows->dtype == ENGRAM_BF16 ? 2 : 1;
	uint32_t width = ENGRAM_UNIT_BYTES / element;
	struct lookup_plan plan = {PATH_ELEMENTS, 1, 0, WARP};
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

enum engram_status lookup_blocks(const struct engram_cuda_grid *grid,
				 int resident, int64_t tiles, unsigned int *out,
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

enum engram_status lookup_check(const struct engram_cuda_source *source,
				const struct engram_lookup_args *args,
				const uint16_t *out, struct engram_error *err)
{
	struct engram_rows rows = source->rows;
	enum engram_status status;

	if (source->descriptor)
		rows.row_begin = rows.row_end = 0;
	status = engram_check_lookup(&rows, args, out, err);
	if (status ||
	    (uint64_t)args->num_tokens * args->local_heads <= UINT32_MAX)
		return status;
	return engram_invalid(err, "num_tokens",
			      "more than 2^32 rows for one launch",
			      "pass fewer tokens at once");
}

struct lookup_task lookup_task_of(const struct engram_cuda_source *source,
				  const struct engram_lookup_args *args)
{
	struct lookup_task task = {};

	task.rows = source->rows;
	task.descriptor = source->descriptor;
	task.args = *args;
	task.num_rows = args->num_tokens * args->local_heads;
	return task;
}
