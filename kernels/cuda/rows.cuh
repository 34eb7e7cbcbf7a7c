/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stored codes to bf16 on the GPU, eight bytes of codes at a time: a "unit",
 * 8 fp8 codes or 4 of bf16.  The bits are those of engram_row_math.h.
 */
#ifndef ENGRAM_CUDA_ROWS_CUH
#define ENGRAM_CUDA_ROWS_CUH

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include "engram_row_math.h"
#include "engram_segment.h"

#define ENGRAM_UNIT_BYTES 8

/* Two floats to two bf16, the first in the low half; as engram_bf16_of_float,
 * NaN is 0x7fff. */
static __device__ __forceinline__ uint32_t engram_bf16x2(float low, float high)
{
	__nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
	uint32_t bits;

	memcpy(&bits, &pair, sizeof(bits));
	return bits;
}

static __device__ __forceinline__ float2 engram_e4m3x2(uint32_t codes)
{
	__half2_raw raw = __nv_cvt_fp8x2_to_halfraw2(
		(__nv_fp8x2_storage_t)codes, __NV_E4M3);
	__half2 pair(raw);

	return __half22float2(pair);
}

/* 8 codes under one scale. */
static __device__ __forceinline__ uint4 engram_decode_fp8(uint2 codes,
							  float scale)
{
	float2 a = engram_e4m3x2(codes.x & 0xffff);
	float2 b = engram_e4m3x2(codes.x >> 16);
	float2 c = engram_e4m3x2(codes.y & 0xffff);
	float2 d = engram_e4m3x2(codes.y >> 16);

	return make_uint4(engram_bf16x2(a.x * scale, a.y * scale),
			  engram_bf16x2(b.x * scale, b.y * scale),
			  engram_bf16x2(c.x * scale, c.y * scale),
			  engram_bf16x2(d.x * scale, d.y * scale));
}

static __device__ __forceinline__ uint32_t engram_scale_bf16x2(uint32_t pair,
							       float scale)
{
	return engram_bf16x2(
		engram_bf16_to_float((uint16_t)(pair & 0xffff)) * scale,
		engram_bf16_to_float((uint16_t)(pair >> 16)) * scale);
}

/* 4 bf16 under one scale. */
static __device__ __forceinline__ uint2 engram_decode_bf16(uint2 codes,
							   float scale)
{
	return make_uint2(engram_scale_bf16x2(codes.x, scale),
			  engram_scale_bf16x2(codes.y, scale));
}

/* One element, wherever it is. */
static __device__ __forceinline__ uint16_t engram_decode_one(
	const uint8_t *codes, uint32_t dtype, uint32_t at, float scale)
{
	float value;

	if (dtype == ENGRAM_F8_E4M3)
		value = engram_e4m3_to_float(codes[at]);
	else
		value = engram_bf16_to_float(
			(uint16_t)(codes[2 * (size_t)at] |
				   codes[2 * (size_t)at + 1] << 8));
	return engram_bf16_of_float(value * scale);
}

#endif
