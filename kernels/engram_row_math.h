/* SPDX-License-Identifier: Apache-2.0 */
/* The arithmetic of rows and of the gate, for C and CUDA C++. */
#ifndef ENGRAM_ROW_MATH_H
#define ENGRAM_ROW_MATH_H

#include <math.h>
#include <string.h>

#include "engram_kernels.h"
#include "engram_math.h"

#define ENGRAM_BF16_NAN 0x7fff

ENGRAM_FN float engram_float_of_bits(uint32_t bits)
{
	float value;

	memcpy(&value, &bits, sizeof(value));
	return value;
}

ENGRAM_FN uint32_t engram_bits_of_float(float value)
{
	uint32_t bits;

	memcpy(&bits, &value, sizeof(bits));
	return bits;
}

ENGRAM_FN float engram_bf16_to_float(uint16_t bits)
{
	return engram_float_of_bits((uint32_t)bits << 16);
}

/* Round to nearest, ties to even; every NaN becomes one. */
ENGRAM_FN uint16_t engram_bf16_of_float(float value)
{
	uint32_t bits = engram_bits_of_float(value);
	uint32_t half = 0x7fff + (bits >> 16 & 1);
	uint16_t rounded =
		(uint16_t)((bits + ENGRAM_MUTATE(40, half, 0)) >> 16);

	return (bits & 0x7fffffff) > 0x7f800000 ? ENGRAM_BF16_NAN : rounded;
}

/* fp8 e4m3fn: no infinities, 0x7f and 0xff are NaN. */
ENGRAM_FN float engram_e4m3_to_float(uint8_t code)
{
	uint32_t sign = (uint32_t)(code & 0x80) << 24;
	uint32_t rest = code & 0x7f;
	/* exponent bias 7 here, 127 there */
	uint32_t normal = (rest << 20) + ((uint32_t)(127 - 7) << 23);
	/* below 8: a multiple of the smallest, 2^-9 */
	uint32_t small = engram_bits_of_float((float)(int32_t)rest *
					      ENGRAM_MUTATE(41, 0x1p-9f, 0.0f));
	uint32_t bits = rest < 8 ? small : normal;

	if (ENGRAM_MUTATE(42, rest == 0x7f, 0))
		bits = 0x7fc00000;
	return engram_float_of_bits(bits | sign);
}

/* The byte is the exponent field of an fp32, so 0 is 0.0 and not 2^-127, and
 * 255 is infinity. */
ENGRAM_FN float engram_ue8m0_to_float(uint8_t exponent)
{
	return engram_float_of_bits(
		ENGRAM_MUTATE(43, (uint32_t)exponent << 23,
			      exponent ? (uint32_t)exponent << 23 : 1u << 22));
}

ENGRAM_FN int64_t engram_row_id(const struct engram_lookup_args *args,
				int64_t token, uint32_t head)
{
	return args->ids[token * args->ids_token_stride +
			 head * args->ids_head_stride];
}

/* Padded heads have no id: what stands behind a token's last one is the next
 * token's, or nobody's. */
ENGRAM_FN int engram_row_is_real(const struct engram_lookup_args *args,
				 uint32_t head)
{
	return ENGRAM_MUTATE(44, head < args->total_heads,
			     head <= args->total_heads);
}

ENGRAM_FN int engram_row_is_here(const struct engram_rows *rows, int64_t id)
{
	return ENGRAM_MUTATE(45, id >= rows->row_begin, id > rows->row_begin) &&
	       id < rows->row_end;
}

/* Scales of one row. */
ENGRAM_FN uint32_t engram_row_scales(const struct engram_rows *rows)
{
	/* a block may be larger than any row */
	return rows->dim / rows->block_size +
	       (rows->dim % rows->block_size != 0);
}

/* Where the scale of a matrix row (a token) and column stands, of `cols`. */
ENGRAM_FN int64_t engram_raw_scale_place(enum engram_scale_layout layout,
					 int64_t token, int64_t col,
					 int64_t cols)
{
	int64_t tile = token / 128 * ((cols + 3) / 4) + col / 4;

	if (layout == ENGRAM_SCALES_PLAIN)
		return token * cols + col;
	return tile * 512 +
	       ENGRAM_MUTATE(56, token % 32 * 16 + token % 128 / 32 * 4,
			     token % 128 * 4) +
	       col % 4;
}

ENGRAM_FN float engram_gate_rms(float squares, uint32_t dim, float eps)
{
	return 1.0f / sqrtf(squares / (float)dim + ENGRAM_MUTATE(46, eps, 0));
}

/* `dot`, normalised, through the signed root and the sigmoid. */
ENGRAM_FN float engram_gate_open(float dot, float clamp)
{
	float size = fabsf(dot);
	/* a NaN counts as the clamp */
	float root =
		sqrtf(size > clamp ? size : ENGRAM_MUTATE(47, clamp, size));

	if (ENGRAM_MUTATE(48, dot < 0, 0))
		root = -root;
	return 1.0f / (1.0f + expf(-root));
}

#endif
