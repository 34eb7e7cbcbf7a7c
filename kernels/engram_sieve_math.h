/* SPDX-License-Identifier: Apache-2.0 */
/* How a sieve (engram_cuda_sieve.h) finds rows, for C and CUDA C++. */
#ifndef ENGRAM_SIEVE_MATH_H
#define ENGRAM_SIEVE_MATH_H

#include <stdint.h>

#include "engram_math.h"

#define ENGRAM_SIEVE_EPOCH_BITS 26
#define ENGRAM_SIEVE_PROBES	16u /* of what was seen, for one id */
#define ENGRAM_SIEVE_HITS_MAX	255u

/* What is told apart: never 0, which is an empty entry. */
ENGRAM_FN uint64_t engram_sieve_key(uint64_t epoch, uint32_t layer, int32_t id)
{
	uint64_t mask = (UINT64_C(1) << ENGRAM_SIEVE_EPOCH_BITS) - 1;

	return UINT64_C(1) << 63 | (epoch & mask) << 37 |
	       (uint64_t)(layer & 63) << 31 | ((uint32_t)id & 0x7fffffffu);
}

/* Is an entry with this tag of what there was before? */
ENGRAM_FN int engram_sieve_is_stale(uint64_t tag, uint64_t key)
{
	return tag >> 37 != key >> 37;
}

ENGRAM_FN uint32_t engram_sieve_hash(uint32_t layer, int32_t id)
{
	uint64_t x = (uint64_t)layer << 31 | (uint32_t)id;

	x ^= x >> 17;
	x *= UINT64_C(0x9e3779b97f4a7c15);
	x ^= x >> 29;
	x *= UINT64_C(0xbf58476d1ce4e5b9);
	return (uint32_t)(x >> 32);
}

ENGRAM_FN uint32_t engram_sieve_set(uint32_t hash, uint32_t sets)
{
	return (uint32_t)((uint64_t)hash * sets >> 32);
}

/* A use word: the batch that hit last, and how many did. */
ENGRAM_FN uint32_t engram_sieve_use(uint32_t now, uint32_t hits)
{
	return now << 8 | hits;
}

ENGRAM_FN uint32_t engram_sieve_hit(uint32_t use, uint32_t now)
{
	uint32_t hits = use & 0xff;

	return engram_sieve_use(now,
				hits < ENGRAM_SIEVE_HITS_MAX ? hits + 1 : hits);
}

/* May the batch still read it? */
ENGRAM_FN int engram_sieve_in_use(uint32_t use, uint32_t now)
{
	return use >> 8 == (now & 0xffffffu);
}

/* How little an entry is worth: the least is given up.  Above 0xff: none. */
ENGRAM_FN uint32_t engram_sieve_worth(uint64_t tag, uint32_t use, uint64_t key,
				      uint32_t now)
{
	if (engram_sieve_in_use(use, now))
		return 0x100;
	return engram_sieve_is_stale(tag, key) ? 0 : use & 0xff;
}

/* Rows that are posted, of those that are fetched. */
ENGRAM_FN uint32_t engram_sieve_posted(uint32_t fetched, uint32_t own_ppt)
{
	return fetched - (uint32_t)((uint64_t)fetched * own_ppt / 1000);
}

/* Rows of a chunk of so many: in whole units, and none too small. */
ENGRAM_FN uint32_t engram_sieve_flag_rows(uint32_t posted, uint32_t flags)
{
	uint32_t rows = (posted + flags - 1) / flags;

	rows = rows > 256 ? rows : 256;
	return (rows + 7) / 8 * 8;
}

#endif
