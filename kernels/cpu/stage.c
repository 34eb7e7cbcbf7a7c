/* SPDX-License-Identifier: Apache-2.0 */
#include "stage.h"

#include "engram_row_math.h"
#include "engram_segment.h"

void engram_cpu_stage_begin(struct engram_stage *stage,
			    const struct engram_rows *rows, const int32_t *ids,
			    size_t count)
{
	stage->rows = rows;
	stage->ids = ids;
	stage->count = count;
	stage->next = stage->done = 0;
	stage->code_bytes =
		(size_t)rows->dim * (rows->dtype == ENGRAM_BF16 ? 2 : 1);
	stage->scale_bytes = rows->scale_scheme == ENGRAM_SCALE_UE8M0_BLOCK
				     ? engram_row_scales(rows)
				     : 0;
	for (size_t i = 0; i < ENGRAM_STAGE_AHEAD; i++)
		engram_stage_start_one(stage);
}

void engram_cpu_stage_next(struct engram_stage *stage, size_t count, void *out,
			   size_t stride, enum engram_stage_to to)
{
	switch (engram_cpu_isa()) {
#ifdef __x86_64__
	case ENGRAM_ISA_AVX512:
		engram_stage_avx512(stage, count, out, stride, to);
		return;
	case ENGRAM_ISA_AVX2:
		engram_stage_avx2(stage, count, out, stride, to);
		return;
#endif
	default:
		engram_stage_scalar(stage, count, out, stride, to);
	}
}

void engram_cpu_stage(const struct engram_rows *rows, const int32_t *ids,
		      size_t count, void *out, size_t stride)
{
	struct engram_stage stage;

	engram_cpu_stage_begin(&stage, rows, ids, count);
	engram_cpu_stage_next(&stage, count, out, stride,
			      ENGRAM_STAGE_STREAMED);
}
