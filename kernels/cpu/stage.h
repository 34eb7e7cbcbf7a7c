/* SPDX-License-Identifier: Apache-2.0 */
/* Inside the CPU backend: the copying of engram_stage.h, compiled once for
 * each instruction set (stage_body.h). */
#ifndef ENGRAM_CPU_STAGE_H
#define ENGRAM_CPU_STAGE_H

#include "engram_stage.h"

typedef void engram_stage_fn(struct engram_stage *stage, size_t count,
			     uint8_t *out, size_t stride,
			     enum engram_stage_to to);

extern engram_stage_fn engram_stage_scalar, engram_stage_avx2,
	engram_stage_avx512;

/* Have the next row that is not under way on its way. */
void engram_stage_start_one(struct engram_stage *stage);

#endif
