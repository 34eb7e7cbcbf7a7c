/* SPDX-License-Identifier: Apache-2.0 */
/*
 *	test_random [KIND...]		(lookup, raw, decode, gate, ...)
 *
 * Random cases on the GPU against the CPU backend: equal bits, the gate
 * within its tolerance.  ENGRAM_PROPERTY_SEED is the first seed, 0 unless
 * given, ENGRAM_PROPERTY_CASES how many of each kind.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "random.h"
#include "shim.h"

#define CASES 150
/* Failures of a kind that are printed before it is given up. */
#define ENOUGH 3

static const struct {
	const char *name;
	int (*run)(uint64_t seed, char *why);
} kinds[] = {
	{"lookup", random_lookup},   {"raw", random_raw},
	{"decode", random_decode},   {"gate", random_gate},
	{"sp_rows", random_sp_rows}, {"hash", random_hash},
	{"step", random_step},
};
#define NUM_KINDS (sizeof(kinds) / sizeof(kinds[0]))

static uint64_t from_env(const char *name, uint64_t otherwise)
{
	const char *text = getenv(name);

	return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

static int wanted(const char *name, int count, char **names)
{
	for (int i = 0; i < count; i++)
		if (!strcmp(names[i], name))
			return 1;
	return count == 0;
}

static int run_kind(size_t k, uint64_t seed, uint64_t cases)
{
	uint64_t failed = 0, done = 0;

	for (; done < cases && failed < ENOUGH; done++, seed++) {
		char why[WHY] = "";

		if (!kinds[k].run(seed, why))
			continue;
		failed++;
		printf("FAIL  %s, ENGRAM_PROPERTY_SEED=%llu: %s\n",
		       kinds[k].name, (unsigned long long)seed, why);
		fflush(stdout);
	}
	printf("%-5s %s: %llu cases, %llu failed\n", failed ? "FAIL" : "ok",
	       kinds[k].name, (unsigned long long)done,
	       (unsigned long long)failed);
	fflush(stdout);
	return failed != 0;
}

int main(int argc, char **argv)
{
	uint64_t seed = from_env("ENGRAM_PROPERTY_SEED", 0);
	uint64_t cases = from_env("ENGRAM_PROPERTY_CASES", CASES);
	int failed = 0, ran = 0;

	engram_shim_need_device();
	for (size_t k = 0; k < NUM_KINDS; k++) {
		if (!wanted(kinds[k].name, argc - 1, argv + 1))
			continue;
		failed |= run_kind(k, seed, cases);
		ran++;
	}
	if (!ran || !cases)
		printf("FAIL  nothing ran\n");
	return failed || !ran || !cases;
}
