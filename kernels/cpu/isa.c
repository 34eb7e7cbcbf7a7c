/* SPDX-License-Identifier: Apache-2.0 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "engram_kernels.h"

/* Global because callers pass no context; one word, written whole.  AUTO
 * until the first use. */
static atomic_int in_use = ENGRAM_ISA_AUTO;

static int supported(enum engram_isa isa)
{
	switch (isa) {
#ifdef __x86_64__ /* these also ask whether the kernel saves the registers */
	case ENGRAM_ISA_AVX512:
		return __builtin_cpu_supports("avx512f") &&
		       __builtin_cpu_supports("avx512bw") &&
		       __builtin_cpu_supports("avx512dq") &&
		       __builtin_cpu_supports("avx512vl") &&
		       supported(ENGRAM_ISA_AVX2);
	case ENGRAM_ISA_AVX2:
		return __builtin_cpu_supports("avx2") &&
		       __builtin_cpu_supports("bmi2");
#endif
	case ENGRAM_ISA_SCALAR:
		return 1;
	default:
		return 0;
	}
}

static enum engram_isa best(void)
{
	if (supported(ENGRAM_ISA_AVX512))
		return ENGRAM_ISA_AVX512;
	if (supported(ENGRAM_ISA_AVX2))
		return ENGRAM_ISA_AVX2;
	return ENGRAM_ISA_SCALAR;
}

/* $ENGRAM_ISA where it names one that is there; all give the same bits, so
 * anything else is not worth failing for. */
static enum engram_isa preferred(void)
{
	const char *name = getenv("ENGRAM_ISA");

	for (int isa = ENGRAM_ISA_SCALAR; name && isa <= ENGRAM_ISA_AVX512;
	     isa++)
		if (!strcmp(name, engram_isa_name((enum engram_isa)isa)) &&
		    supported((enum engram_isa)isa))
			return (enum engram_isa)isa;
	return best();
}

enum engram_isa engram_cpu_isa(void)
{
	int isa = atomic_load_explicit(&in_use, memory_order_relaxed);

	if (isa == ENGRAM_ISA_AUTO) {
		isa = preferred();
		atomic_store_explicit(&in_use, isa, memory_order_relaxed);
	}
	return (enum engram_isa)isa;
}

enum engram_status engram_cpu_set_isa(enum engram_isa isa)
{
	if (isa == ENGRAM_ISA_AUTO)
		isa = best();
	if (!supported(isa))
		return ENGRAM_EUNSUPPORTED;
	atomic_store_explicit(&in_use, isa, memory_order_relaxed);
	return ENGRAM_OK;
}

const char *engram_isa_name(enum engram_isa isa)
{
	switch (isa) {
	case ENGRAM_ISA_AUTO:
		return "auto";
	case ENGRAM_ISA_SCALAR:
		return "scalar";
	case ENGRAM_ISA_AVX2:
		return "avx2";
	case ENGRAM_ISA_AVX512:
		return "avx512";
	}
	return "unknown";
}
