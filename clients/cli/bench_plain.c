/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "bench.h"
#include "engram_segment.h"

#define DIM_MAX 8192

static float fp8_value(unsigned int code)
{
	unsigned int exponent = code >> 3 & 15, mantissa = code & 7;
	float value;

	if (exponent == 15 && mantissa == 7)
		return NAN;
	value = exponent ? ldexpf(1.0f + (float)mantissa / 8, (int)exponent - 7)
			 : ldexpf((float)mantissa / 8, -6);
	return code & 128 ? -value : value;
}

static float from_bits(uint32_t bits)
{
	float value;

	memcpy(&value, &bits, sizeof(value));
	return value;
}

static uint16_t to_bf16(float value)
{
	uint32_t bits;

	memcpy(&bits, &value, sizeof(bits));
	if (isnan(value))
		return 0x7fc0;
	return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static float scale_of(const struct engram_rows *rows,
		      const unsigned char *scales, uint32_t column)
{
	if (rows->scale_scheme == ENGRAM_SCALE_UE8M0_BLOCK)
		return from_bits((uint32_t)scales[column / rows->block_size]
				 << 23);
	return rows->tensor_scale;
}

void bench_plain(const struct engram_rows *rows, const int32_t *ids,
		 int64_t count, uint16_t *out)
{
	unsigned char codes[2 * DIM_MAX], scales[DIM_MAX];
	bool bf16 = rows->dtype == ENGRAM_BF16;
	size_t code_bytes = rows->dim * (bf16 ? (size_t)2 : 1);
	size_t scale_bytes = rows->scale_scheme == ENGRAM_SCALE_UE8M0_BLOCK
				     ? rows->dim / rows->block_size
				     : 0;
	float table[256], value;
	uint32_t c;
	int64_t i, row;

	for (c = 0; c < 256; c++)
		table[c] = fp8_value(c);
	for (i = 0; i < count; i++, out += rows->dim) {
		row = ids[i] - rows->row_begin;
		memcpy(codes,
		       (const char *)rows->codes +
			       row * rows->code_stride_bytes,
		       code_bytes);
		if (scale_bytes)
			memcpy(scales,
			       (const char *)rows->scales +
				       row * rows->scale_stride_bytes,
			       scale_bytes);
		for (c = 0; c < rows->dim; c++) {
			value = bf16 ? from_bits((uint32_t)codes[2 * c] << 16 |
						 (uint32_t)codes[2 * c + 1]
							 << 24)
				     : table[codes[c]];
			out[c] = to_bf16(value * scale_of(rows, scales, c));
		}
	}
}
