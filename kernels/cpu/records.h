/* SPDX-License-Identifier: Apache-2.0 */
/* Inside the CPU backend: engram_records.h, compiled once for each
 * instruction set (records_body.h). */
#ifndef ENGRAM_CPU_RECORDS_H
#define ENGRAM_CPU_RECORDS_H

#include "engram_kernels.h"
#include "engram_records.h"

typedef void engram_interleave_fn(void *out, const void *codes,
				  const void *scales, size_t rows,
				  size_t code_bytes, size_t scale_bytes);
typedef void engram_stream_fn(void *to, const void *from, size_t bytes);

extern engram_interleave_fn engram_interleave_scalar, engram_interleave_avx2,
	engram_interleave_avx512;
extern engram_stream_fn engram_stream_scalar, engram_stream_avx2,
	engram_stream_avx512;

#endif
