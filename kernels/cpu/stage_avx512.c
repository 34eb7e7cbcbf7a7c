/* SPDX-License-Identifier: Apache-2.0 */
#include "stage_body.h"

void engram_stage_avx512(const struct engram_rows *rows, const int32_t *ids,
			 size_t count, uint8_t *out, size_t stride)
{
	stage_rows(rows, ids, count, out, stride);
}
