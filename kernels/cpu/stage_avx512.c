/* SPDX-License-Identifier: Apache-2.0 */
#include "stage_body.h"

void engram_stage_avx512(struct engram_stage *stage, size_t count, uint8_t *out,
			 size_t stride, enum engram_stage_to to)
{
	stage_rows(stage, count, out, stride, to);
}
