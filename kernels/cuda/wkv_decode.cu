/* SPDX-License-Identifier: Apache-2.0 */
/* Runs once for a layer: plain, a block a row. */
#include "engram_row_math.h"
#include "launch.h"
#include "wkv_decode.h"

#define THREADS	   256
#define BLOCK_SIDE 32

static __global__ void __launch_bounds__(THREADS)
	decode_kernel(const uint8_t *__restrict__ codes,
		      const uint8_t *__restrict__ scales, uint32_t cols,
		      uint16_t *__restrict__ out)
{
	int64_t row = blockIdx.x;
	uint32_t scale_cols = (cols - 1) / BLOCK_SIDE + 1;

	codes += row * cols;
	out += row * cols;
	scales += row / BLOCK_SIDE * scale_cols;
	for (uint32_t c = threadIdx.x; c < cols; c += THREADS)
		out[c] = engram_bf16_of_float(
			engram_e4m3_to_float(codes[c]) *
			engram_ue8m0_to_float(scales[c / BLOCK_SIDE]));
}

enum engram_status engram_wkv_decode(const uint8_t *codes,
				     const uint8_t *scales, uint32_t rows,
				     uint32_t cols, uint16_t *out,
				     engram_stream stream,
				     struct engram_error *err)
{
	decode_kernel<<<rows, THREADS, 0, stream>>>(codes, scales, cols, out);
	return engram_cuda_launched("weight decoding kernel", err);
}
