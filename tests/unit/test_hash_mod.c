/* SPDX-License-Identifier: Apache-2.0 */
/* x mod p of every version against C's %, at the extremes and at random. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "cpu/hash.h"
#include "engram_geometry.h"

#define MAX_HEADS 19
#define CANARY	  INT32_C(0x5a5a5a5a)

static const struct {
	enum engram_isa isa;
	engram_hash_rows_fn *rows;
} versions[] = {
	{ENGRAM_ISA_SCALAR, engram_hash_rows_scalar},
	{ENGRAM_ISA_AVX2, engram_hash_rows_avx2},
	{ENGRAM_ISA_AVX512, engram_hash_rows_avx512},
};

static uint64_t next_random(uint64_t *state)
{
	uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);

	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

static void check(const int64_t *x, int64_t tokens, const int64_t *primes,
		  const int64_t *offsets, uint32_t heads)
{
	int32_t out[ENGRAM_HASH_TILE * (MAX_HEADS + 1)];
	int64_t stride = heads + 1;

	for (size_t v = 0; v < sizeof(versions) / sizeof(versions[0]); v++) {
		if (engram_cpu_set_isa(versions[v].isa))
			continue;
		for (int64_t i = 0; i < tokens * stride; i++)
			out[i] = CANARY;
		versions[v].rows(x, tokens, primes, offsets, heads, out,
				 stride);
		for (int64_t t = 0; t < tokens; t++) {
			for (uint32_t h = 0; h < heads; h++) {
				int32_t want = (int32_t)(x[t] % primes[h] +
							 offsets[h]);

				if (out[t * stride + h] != want)
					fail_msg("%s: %lld mod %lld + %lld is "
						 "%d, not %d",
						 engram_isa_name(
							 versions[v].isa),
						 (long long)x[t],
						 (long long)primes[h],
						 (long long)offsets[h],
						 out[t * stride + h], want);
			}
			assert_int_equal(out[t * stride + heads], CANARY);
		}
	}
	engram_cpu_set_isa(ENGRAM_ISA_AUTO);
}

/* Values around multiples of p, where a quotient is off by one. */
static int64_t edges(int64_t p, int64_t *x)
{
	const int64_t bases[] = {0,
				 1,
				 (INT64_C(1) << 21) - 1,
				 INT64_C(1) << 21,
				 INT64_C(1) << 42,
				 INT64_C(1) << 52,
				 (INT64_C(1) << 53) + 1,
				 INT64_MAX / p * p - 1,
				 INT64_MAX / 2 / p * p,
				 INT64_MAX - 1};
	int64_t n = 0;

	for (size_t i = 0; i < sizeof(bases) / sizeof(bases[0]); i++) {
		x[n++] = bases[i];
		x[n++] = -bases[i];
		x[n++] = bases[i] / p * p;
		x[n++] = -(bases[i] / p * p);
		x[n++] = bases[i] + 1;
	}
	x[n++] = INT64_MAX;
	x[n++] = INT64_MIN;
	x[n++] = INT64_MIN + 1;
	return n;
}

static void test_extremes(void **state)
{
	const int64_t primes[] = {1,	      2,	  3,	  5,
				  7,	      11,	  127,	  8191,
				  65537,      131071,	  524287, 16000057,
				  1073741789, 2147483647, 4};
	const int64_t zero[1] = {0}, offset[1] = {INT64_C(1) << 30};
	int64_t x[ENGRAM_HASH_TILE];

	(void)state;
	for (size_t i = 0; i < sizeof(primes) / sizeof(primes[0]); i++) {
		int64_t n = edges(primes[i], x);

		assert_true(n <= ENGRAM_HASH_TILE);
		check(x, n, &primes[i], zero, 1);
		if (primes[i] < INT64_C(1) << 30)
			check(x, n, &primes[i], offset, 1);
	}
}

static void test_every_head_count(void **state)
{
	int64_t primes[MAX_HEADS], offsets[MAX_HEADS], x[ENGRAM_HASH_TILE];
	uint64_t random = 1;

	(void)state;
	for (uint32_t heads = 1; heads <= MAX_HEADS; heads++) {
		for (uint32_t h = 0; h < heads; h++) {
			primes[h] = 1 + (int64_t)(next_random(&random) >>
						  (34 + random % 29));
			offsets[h] = (int64_t)(next_random(&random) >> 34);
		}
		for (int64_t t = 0; t < ENGRAM_HASH_TILE; t++)
			x[t] = (int64_t)(next_random(&random) >>
					 next_random(&random) % 64);
		for (int64_t tokens = 0; tokens < 5; tokens++)
			check(x, tokens, primes, offsets, heads);
		check(x, ENGRAM_HASH_TILE, primes, offsets, heads);
	}
}

static void test_random_primes(void **state)
{
	const int64_t zero[1] = {0};
	int64_t x[ENGRAM_HASH_TILE];
	uint64_t random = 2;

	(void)state;
	for (int i = 0; i < 3000; i++) {
		uint32_t n = 2 + (uint32_t)(next_random(&random) >>
					    (33 + random % 28));
		int64_t p, count;

		while (!engram_is_prime(n))
			n--;
		p = n;
		count = edges(p, x);
		check(x, count, &p, zero, 1);
		for (int64_t t = 0; t < ENGRAM_HASH_TILE; t++)
			x[t] = (int64_t)next_random(&random) / p * p - (t & 1);
		check(x, ENGRAM_HASH_TILE, &p, zero, 1);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_extremes),
		cmocka_unit_test(test_every_head_count),
		cmocka_unit_test(test_random_primes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
