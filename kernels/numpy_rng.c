/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of numpy.random.default_rng(seed).integers() that the hash
 * multipliers come from.  Constants and order of operations are NumPy's and
 * must stay as they are: one wrong bit gives a table of unrelated rows.
 */
#include <stdbool.h>

#include "engram_geometry.h"
#include "engram_math.h"

typedef unsigned __int128 u128;

#define POOL_SIZE  4 /* words of SeedSequence's entropy pool */
#define INIT_A	   0x43b0d7e5u
#define MULT_A	   0x931e8875u
#define INIT_B	   0x8b51f9ddu
#define MULT_B	   0x58f38dedu
#define MIX_MULT_L 0xca01f9ddu
#define MIX_MULT_R 0x4973f715u

struct pcg64 {
	u128 state, increment;
	/* A 32-bit draw takes the low half of an output, the next one the
	 * high half, which waits here. */
	uint32_t half;
	bool has_half;
};

static uint32_t hashmix(uint32_t value, uint32_t *constant, uint32_t mult)
{
	value ^= *constant;
	*constant *= mult;
	value *= *constant;
	return value ^ (value >> 16);
}

static uint32_t mix(uint32_t x, uint32_t y)
{
	uint32_t value = MIX_MULT_L * x - MIX_MULT_R * y;

	return value ^ (value >> 16);
}

/* SeedSequence(seed).generate_state(4, uint64) */
static void seed_sequence(uint64_t seed, uint64_t state[4])
{
	uint32_t pool[POOL_SIZE] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
	uint32_t constant = INIT_A;

	for (int i = 0; i < POOL_SIZE; i++)
		pool[i] = hashmix(pool[i], &constant, MULT_A);
	for (int src = 0; src < POOL_SIZE; src++)
		for (int dst = 0; dst < POOL_SIZE; dst++)
			if (src != dst)
				pool[dst] = mix(
					pool[dst],
					hashmix(pool[src], &constant, MULT_A));

	constant = INIT_B;
	for (int i = 0; i < 4; i++) {
		uint64_t low =
			hashmix(pool[2 * i % POOL_SIZE], &constant, MULT_B);
		uint64_t high = hashmix(pool[(2 * i + 1) % POOL_SIZE],
					&constant, MULT_B);

		state[i] = high << 32 | low;
	}
}

static void pcg64_step(struct pcg64 *rng)
{
	const u128 multiplier =
		(u128)2549297995355413924u << 64 | 4865540595714422341u;

	rng->state = rng->state * multiplier + rng->increment;
}

static void pcg64_seed(struct pcg64 *rng, uint64_t seed)
{
	uint64_t s[4];

	seed_sequence(seed, s);
	*rng = (struct pcg64){
		.increment = ((u128)s[2] << 64 | s[3]) << 1 | 1,
	};
	pcg64_step(rng);
	rng->state += (u128)s[0] << 64 | s[1];
	pcg64_step(rng);
}

/* XSL-RR 128/64 */
static uint64_t next64(struct pcg64 *rng)
{
	uint64_t folded;
	unsigned int turn;

	pcg64_step(rng);
	folded = (uint64_t)(rng->state >> 64) ^ (uint64_t)rng->state;
	turn = (unsigned int)(rng->state >> 122);
	return folded >> turn | folded << (-turn & 63);
}

static uint32_t next32(struct pcg64 *rng)
{
	uint64_t value;

	if (ENGRAM_MUTATE(23, rng->has_half, false)) {
		rng->has_half = false;
		return rng->half;
	}
	value = next64(rng);
	rng->half = (uint32_t)(value >> 32);
	rng->has_half = true;
	return (uint32_t)value;
}

/* Lemire's unbiased draws below `bound`, which is at least 2 */
static uint64_t below32(struct pcg64 *rng, uint32_t bound)
{
	uint64_t product = (uint64_t)next32(rng) * bound;

	if ((uint32_t)product < bound) {
		uint32_t threshold = -bound % bound;

		while ((uint32_t)product < threshold)
			product = (uint64_t)next32(rng) * bound;
	}
	return product >> 32;
}

static uint64_t below64(struct pcg64 *rng, uint64_t bound)
{
	u128 product = (u128)next64(rng) * bound;

	if (ENGRAM_MUTATE(24, (uint64_t)product < bound, false)) {
		uint64_t threshold = -bound % bound;

		while ((uint64_t)product < threshold)
			product = (u128)next64(rng) * bound;
	}
	return (uint64_t)(product >> 64);
}

void engram_numpy_integers(uint64_t seed, uint64_t bound, uint32_t count,
			   int64_t *out)
{
	struct pcg64 rng;

	pcg64_seed(&rng, seed);
	for (uint32_t i = 0; i < count; i++) {
		uint64_t value;

		if (bound <= 1)
			value = 0;
		else if (bound <= UINT32_MAX)
			value = below32(&rng, (uint32_t)bound);
		else if (bound == (uint64_t)UINT32_MAX + 1)
			value = next32(&rng); /* every value is allowed */
		else
			value = below64(&rng, bound);
		out[i] = (int64_t)value;
	}
}
