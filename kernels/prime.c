/* SPDX-License-Identifier: Apache-2.0 */
#include <stdbool.h>
#include <stddef.h>

#include "engram_geometry.h"

static uint32_t power_mod(uint64_t base, uint32_t exponent, uint32_t n)
{
	uint64_t result = 1;

	for (base %= n; exponent; exponent >>= 1) {
		if (exponent & 1)
			result = result * base % n;
		base = base * base % n;
	}
	return (uint32_t)result;
}

/* One round of Miller-Rabin for odd n = d * 2^twos + 1. */
static bool passes_round(uint32_t n, uint32_t base, uint32_t d, int twos)
{
	uint64_t x = power_mod(base, d, n);

	if (x == 1 || x == n - 1)
		return true;
	while (--twos > 0) {
		x = x * x % n;
		if (x == n - 1)
			return true;
	}
	return false;
}

int engram_is_prime(uint32_t n)
{
	static const uint8_t small[] = {2,  3,	5,  7,	11, 13,
					17, 19, 23, 29, 31, 37};
	/* These bases decide every n below 4,759,123,141. */
	static const uint8_t bases[] = {2, 7, 61};
	uint32_t d;
	int twos;

	if (n < 2)
		return 0;
	for (size_t i = 0; i < sizeof(small); i++)
		if (n % small[i] == 0)
			return n == small[i];
	twos = __builtin_ctz(n - 1);
	d = (n - 1) >> twos;
	for (size_t i = 0; i < sizeof(bases); i++)
		if (n != bases[i] && !passes_round(n, bases[i], d, twos))
			return 0;
	return 1;
}
