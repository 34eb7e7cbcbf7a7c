/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGRAMD_CLOCK_H
#define ENGRAMD_CLOCK_H

#include <stdint.h>
#include <time.h>

/* CLOCK_MONOTONIC: steps of the wall clock change no age and no rate. */
static inline uint64_t clock_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static inline double clock_seconds_since(uint64_t ns)
{
	return (double)(clock_ns() - ns) / 1e9;
}

#endif
