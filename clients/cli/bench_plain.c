/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "bench.h"
#include "engram_segment.h"

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

/* `count` codes that share a scale. */
static void convert(const unsigned char *codes, bool bf16, const float *table,
		    float scale, uint32_t count, uint16_t *out)
{
	uint32_t i;

	if (bf16)
		for (i = 0; i < count; i++)
			out[i] = to_bf16(
				from_bits((uint32_t)codes[2 * i] << 16 |
					  (uint32_t)codes[2 * i + 1] << 24) *
				scale);
	else
		for (i = 0; i < count; i++)
			out[i] = to_bf16(table[codes[i]] * scale);
}

void bench_plain(const struct engram_rows *rows, const int32_t *ids,
		 int64_t count, unsigned char *record, uint16_t *out)
{
	bool bf16 = rows->dtype == ENGRAM_BF16;
	bool blocks = rows->scale_scheme == ENGRAM_SCALE_UE8M0_BLOCK;
	size_t code_bytes = rows->dim * (bf16 ? (size_t)2 : 1);
	uint32_t block = blocks ? rows->block_size : rows->dim, c;
	unsigned char *scales = record + code_bytes;
	float table[256], scale;
	int64_t i, row;

	for (c = 0; c < 256; c++)
		table[c] = fp8_value(c);
	for (i = 0; i < count; i++, out += rows->dim) {
		row = ids[i] - rows->row_begin;
		memcpy(record,
		       (const char *)rows->codes +
			       row * rows->code_stride_bytes,
		       code_bytes);
		if (blocks)
			memcpy(scales,
			       (const char *)rows->scales +
				       row * rows->scale_stride_bytes,
			       rows->dim / block);
		for (c = 0; c < rows->dim; c += block) {
			scale = blocks ? from_bits((uint32_t)scales[c / block]
						   << 23)
				       : rows->tensor_scale;
			convert(record + c * (bf16 ? (size_t)2 : 1), bf16,
				table, scale, block, out + c);
		}
	}
}
