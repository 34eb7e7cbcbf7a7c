/* SPDX-License-Identifier: Apache-2.0 */
/* Inside the CPU backend: the loops over a row's elements, which are
 * compiled once for each instruction set (rows_body.h). */
#ifndef ENGRAM_CPU_ROWS_H
#define ENGRAM_CPU_ROWS_H

#include <fenv.h>

#include "engram_kernels.h"

struct engram_row_fns {
	/* one stored row -> bf16 [dim] */
	void (*decode)(const struct engram_rows *rows, const uint8_t *codes,
		       const uint8_t *scales, uint16_t *out);
	/* one token's copy */
	void (*gate)(const struct engram_gate_args *args, int64_t token,
		     uint32_t copy, uint16_t *out);
};

extern const struct engram_row_fns engram_row_fns_scalar;
extern const struct engram_row_fns engram_row_fns_avx2;
extern const struct engram_row_fns engram_row_fns_avx512;

/*
 * A caller may have set another rounding, or subnormals to be flushed to zero
 * (frameworks do), and threads inherit it: the same bits need the default.
 */
static inline void engram_float_begin(fenv_t *saved)
{
	fegetenv(saved);
	fesetenv(FE_DFL_ENV);
}

static inline void engram_float_end(const fenv_t *saved)
{
	fesetenv(saved);
}

/* Those of the instruction set in use. */
const struct engram_row_fns *engram_row_fns(void);

#endif
