/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bytes of a synthetic table, as a function of (layer id, row), so that
 * any row can be checked without reading the checkpoint.
 *
 *	mix(x)   SplitMix64's output function (Steele, Lea, Flood 2014)
 *	codes    8 at a time, little-endian bytes of
 *		 mix(layer << 48 | row << 12 | col / 8); the two NaN codes of
 *		 fp8 e4m3fn, 0x7f and 0xff, become 0x3f and 0xbf
 *	scales   112 + (mix(layer << 48 | row << 12 | 0x800 | block) & 15):
 *		 2^-15 .. 2^0
 *
 * Rows are below 2^31 and columns below 2^14.  Checkpoints that differ in
 * their rows alone have different seeds: for "layer" stands synth_seeded().
 */
#ifndef SYNTH_ROWS_H
#define SYNTH_ROWS_H

#include <stdint.h>

static inline uint64_t synth_mix(uint64_t x)
{
	x += UINT64_C(0x9e3779b97f4a7c15);
	x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
	return x ^ (x >> 31);
}

#define SYNTH_SEEDS 4 /* above the 14 bits of a layer id */

static inline int32_t synth_seeded(int32_t layer, uint32_t seed)
{
	return layer | (int32_t)(seed << 14);
}

static inline uint64_t synth_key(int32_t layer, uint64_t row)
{
	return (uint64_t)(uint32_t)layer << 48 | row << 12;
}

static inline uint8_t synth_finite(uint8_t code)
{
	return (code & 0x7f) == 0x7f ? code ^ 0x40 : code;
}

static inline uint8_t synth_code(int32_t layer, uint64_t row, uint32_t col)
{
	const uint64_t word = synth_mix(synth_key(layer, row) | col / 8);

	return synth_finite((uint8_t)(word >> col % 8 * 8));
}

static inline uint8_t synth_scale(int32_t layer, uint64_t row, uint32_t block)
{
	return (uint8_t)(112 +
			 (synth_mix(synth_key(layer, row) | 0x800 | block) &
			  15));
}

/* A whole row of codes, and of scales. */
static inline void synth_codes(int32_t layer, uint64_t row, uint32_t dim,
			       uint8_t *out)
{
	uint64_t word = 0;

	for (uint32_t col = 0; col < dim; col++) {
		if (col % 8 == 0)
			word = synth_mix(synth_key(layer, row) | col / 8);
		out[col] = synth_finite((uint8_t)(word >> col % 8 * 8));
	}
}

static inline void synth_scales(int32_t layer, uint64_t row, uint32_t blocks,
				uint8_t *out)
{
	for (uint32_t b = 0; b < blocks; b++)
		out[b] = synth_scale(layer, row, b);
}

#endif
