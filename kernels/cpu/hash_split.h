/* SPDX-License-Identifier: Apache-2.0 */
/*
 * x mod p without integer division, for any int64 x and any p from 1 to
 * 2^31 - 1, exactly, in double precision.
 *
 * Let m = |x| <= 2^63, split as m = high * 2^21 + low, so that high <= 2^42
 * and low < 2^21 are exact doubles, and let inv be 1/p rounded.  A product
 * a * inv, rounded, differs from a/p by at most |a/p| * 2^-52 * (1 + 2^-54).
 *
 *	q = round(high * inv)	|high/p| <= 2^42, so q is within
 *				1/2 + 2^-9 of high/p
 *	r = high - q * p	|r| <= p * (1/2 + 2^-9).  |q * p| < 2^43 and
 *				the difference are exact.
 *	z = r * 2^21 + low	z = m (mod p) and
 *				|z| <= p * (2^20 + 2^12) + 2^21 < 2^52: exact
 *	q = round(z * inv)	|z/p| < 2^22, so q is within 1/2 + 2^-29 of
 *				z/p
 *	r = z - q * p		exact again, |r| <= p/2 + p * 2^-29, and
 *				that is below p: it is at most p/2 + 4,
 *				below p for p > 8, and for p <= 8 the excess
 *				p * 2^-29 is too small for an integer r to
 *				pass p/2
 *
 * So r or r + p is m mod p, and x mod p has the sign of x, as in C.  Every
 * step is exact or covered by the bounds: fused or separate multiply-add
 * give the same bits.
 */
#ifndef ENGRAM_HASH_SPLIT_H
#define ENGRAM_HASH_SPLIT_H

#include "engram_math.h"
#include "hash.h"

#define ENGRAM_SPLIT_BITS 21

struct engram_hash_split {
	double high[ENGRAM_HASH_TILE];
	double low[ENGRAM_HASH_TILE];
	int32_t sign[ENGRAM_HASH_TILE]; /* 0 or -1 */
};

static inline void engram_hash_split(const int64_t *rolling, int64_t tokens,
				     struct engram_hash_split *out)
{
	const uint64_t low_mask = (UINT64_C(1) << ENGRAM_SPLIT_BITS) - 1;

	for (int64_t t = 0; t < tokens; t++) {
		uint64_t m = rolling[t] < 0 ? -(uint64_t)rolling[t]
					    : (uint64_t)rolling[t];

		/* Signed: cheaper to convert, and both fit. */
		out->high[t] = (double)(int64_t)(m >> ENGRAM_SPLIT_BITS);
		out->low[t] = (double)(int64_t)(m & low_mask);
		out->sign[t] = rolling[t] < 0 ? -1 : 0;
	}
}

/* Up to `lanes` divisors as doubles; 1 in the lanes that have none. */
static inline void engram_hash_divisors(const int64_t *primes,
					const int64_t *offsets, uint32_t heads,
					uint32_t lanes, double *prime,
					double *inverse, int32_t *offset)
{
	for (uint32_t i = 0; i < lanes; i++) {
		prime[i] = i < heads ? (double)primes[ENGRAM_MUTATE(20, i, 0)]
				     : 1.0;
		inverse[i] = 1.0 / prime[i];
		offset[i] = i < heads ? (int32_t)(uint32_t)offsets[i] : 0;
	}
}

#endif
