/* SPDX-License-Identifier: Apache-2.0 */
#include <immintrin.h>

#include "hash_split.h"

#define LANES 4

static __m256d nearest(__m256d x)
{
	return _mm256_round_pd(x,
			       _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

static __m256d remainder_of(__m256d high, __m256d low, __m256d prime,
			    __m256d inverse)
{
	const __m256d scale = _mm256_set1_pd(1 << ENGRAM_SPLIT_BITS);
	__m256d q = nearest(_mm256_mul_pd(high, inverse));
	__m256d r = _mm256_sub_pd(high, _mm256_mul_pd(q, prime));
	__m256d z = _mm256_add_pd(_mm256_mul_pd(r, scale), low);
	__m256d negative;

	q = nearest(_mm256_mul_pd(z, inverse));
	r = _mm256_sub_pd(z, _mm256_mul_pd(q, prime));
	negative = _mm256_cmp_pd(r, _mm256_setzero_pd(), _CMP_LT_OQ);
	return _mm256_add_pd(r, _mm256_and_pd(negative, prime));
}

void engram_hash_rows_avx2(const int64_t *rolling, int64_t tokens,
			   const int64_t *primes, const int64_t *offsets,
			   uint32_t heads, int32_t *out, int64_t out_stride)
{
	struct engram_hash_split x;

	engram_hash_split(rolling, tokens, &x);
	for (uint32_t h = 0; h < heads; h += LANES) {
		uint32_t some = heads - h < LANES ? heads - h : LANES;
		double prime[LANES], inverse[LANES];
		int32_t offset[LANES];
		__m256d p, inv;
		__m128i off, mask;

		engram_hash_divisors(primes + h, offsets + h, some, LANES,
				     prime, inverse, offset);
		p = _mm256_loadu_pd(prime);
		inv = _mm256_loadu_pd(inverse);
		off = _mm_loadu_si128((const __m128i *)offset);
		mask = _mm_cmpgt_epi32(_mm_set1_epi32((int)some),
				       _mm_setr_epi32(0, 1, 2, 3));
		for (int64_t t = 0; t < tokens; t++) {
			__m128i sign = _mm_set1_epi32(x.sign[t]);
			__m256d r =
				remainder_of(_mm256_set1_pd(x.high[t]),
					     _mm256_set1_pd(x.low[t]), p, inv);
			__m128i row = _mm256_cvtpd_epi32(r);

			row = _mm_sub_epi32(_mm_xor_si128(row, sign), sign);
			_mm_maskstore_epi32(out + t * out_stride + h, mask,
					    _mm_add_epi32(row, off));
		}
	}
}
