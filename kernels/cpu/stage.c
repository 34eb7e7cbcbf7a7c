/* SPDX-License-Identifier: Apache-2.0 */
#include "stage.h"

void engram_cpu_stage(const struct engram_rows *rows, const int32_t *ids,
		      size_t count, void *out, size_t stride)
{
	switch (engram_cpu_isa()) {
#ifdef __x86_64__
	case ENGRAM_ISA_AVX512:
		engram_stage_avx512(rows, ids, count, out, stride);
		return;
	case ENGRAM_ISA_AVX2:
		engram_stage_avx2(rows, ids, count, out, stride);
		return;
#endif
	default:
		engram_stage_scalar(rows, ids, count, out, stride);
	}
}
