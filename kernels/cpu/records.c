/* SPDX-License-Identifier: Apache-2.0 */
#include "records.h"
#include "stream.h"

void engram_cpu_interleave(void *out, const void *codes, const void *scales,
			   size_t rows, size_t code_bytes, size_t scale_bytes)
{
	switch (engram_cpu_isa()) {
#ifdef __x86_64__
	case ENGRAM_ISA_AVX512:
		engram_interleave_avx512(out, codes, scales, rows, code_bytes,
					 scale_bytes);
		return;
	case ENGRAM_ISA_AVX2:
		engram_interleave_avx2(out, codes, scales, rows, code_bytes,
				       scale_bytes);
		return;
#endif
	default:
		engram_interleave_scalar(out, codes, scales, rows, code_bytes,
					 scale_bytes);
	}
}

void engram_cpu_stream(void *to, const void *from, size_t bytes)
{
	switch (engram_cpu_isa()) {
#ifdef __x86_64__
	case ENGRAM_ISA_AVX512:
		engram_stream_avx512(to, from, bytes);
		return;
	case ENGRAM_ISA_AVX2:
		engram_stream_avx2(to, from, bytes);
		return;
#endif
	default:
		engram_stream_scalar(to, from, bytes);
	}
}

void engram_cpu_stream_end(void)
{
	stream_end();
}
