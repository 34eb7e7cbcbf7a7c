/* SPDX-License-Identifier: Apache-2.0 */
#include <immintrin.h>

#include "hash_split.h"

#define LANES 8

static __m512d nearest(__m512d x)
{
	return _mm512_roundscale_pd(x, _MM_FROUND_TO_NEAREST_INT |
					       _MM_FROUND_NO_EXC);
}

static __m512d remainder_of(__m512d high, __m512d low, __m512d prime,
			    __m512d inverse)
{
	const __m512d scale = _mm512_set1_pd(1 << ENGRAM_SPLIT_BITS);
	__m512d q = nearest(_mm512_mul_pd(high, inverse));
	__m512d r = _mm512_fnmadd_pd(q, prime, high);
	__m512d z = _mm512_fmadd_pd(r, scale, low);
	__mmask8 negative;

	q = nearest(_mm512_mul_pd(z, inverse));
	r = _mm512_fnmadd_pd(q, prime, z);
	negative = _mm512_cmp_pd_mask(r, _mm512_setzero_pd(), _CMP_LT_OQ);
	return _mm512_mask_add_pd(r, negative, r, prime);
}

void engram_hash_rows_avx512(const int64_t *rolling, int64_t tokens,
			     const int64_t *primes, const int64_t *offsets,
			     uint32_t heads, int32_t *out, int64_t out_stride)
{
	struct engram_hash_split x;

	engram_hash_split(rolling, tokens, &x);
	for (uint32_t h = 0; h < heads; h += LANES) {
		uint32_t some = heads - h < LANES ? heads - h : LANES;
		__mmask8 mask = (__mmask8)((1u << some) - 1);
		double prime[LANES], inverse[LANES];
		int32_t offset[LANES];
		__m512d p, inv;
		__m256i off;

		engram_hash_divisors(primes + h, offsets + h, some, LANES,
				     prime, inverse, offset);
		p = _mm512_loadu_pd(prime);
		inv = _mm512_loadu_pd(inverse);
		off = _mm256_loadu_si256((const __m256i *)offset);
		for (int64_t t = 0; t < tokens; t++) {
			__m256i sign = _mm256_set1_epi32(x.sign[t]);
			__m512d r =
				remainder_of(_mm512_set1_pd(x.high[t]),
					     _mm512_set1_pd(x.low[t]), p, inv);
			__m256i row = _mm512_cvtpd_epi32(r);

			row = _mm256_sub_epi32(_mm256_xor_si256(row, sign),
					       sign);
			_mm256_mask_storeu_epi32(out + t * out_stride + h, mask,
						 _mm256_add_epi32(row, off));
		}
	}
}
