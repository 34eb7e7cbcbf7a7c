/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much is read at once, and how many reads are in flight: found by trying
 * some settings for a moment each while the load runs.
 */
#ifndef ENGRAMD_LOADER_TUNE_H
#define ENGRAMD_LOADER_TUNE_H

#include <stdbool.h>
#include <stdint.h>

#define LOADER_SETTINGS_MAX 16

struct loader_setting {
	uint32_t block_bytes; /* of codes in one read */
	uint32_t depth;	      /* blocks in flight of one thread */
};

struct loader_tune {
	struct loader_setting settings[LOADER_SETTINGS_MAX];
	double rates[LOADER_SETTINGS_MAX]; /* sums */
	uint32_t count;
	uint32_t tried; /* of 2 * count */
};

/* What to begin with.  0 in `fixed` is free to be tried; `one` allows a depth
 * of 1 only. */
struct loader_setting loader_tune_init(struct loader_tune *tune,
				       struct loader_setting fixed, bool one);
/* Is there anything to try? */
bool loader_tune_worth(const struct loader_tune *tune);
/* The setting to try now. */
struct loader_setting loader_tune_now(const struct loader_tune *tune);
/* It gave that rate.  True: the next one is to be tried; false: all were, and
 * loader_tune_best is the result. */
bool loader_tune_next(struct loader_tune *tune, double rate);
/* The fastest; of those that are about as fast, the one with the fewest bytes
 * in flight, which stay in the cache best. */
struct loader_setting loader_tune_best(const struct loader_tune *tune);
static inline uint64_t loader_setting_pack(struct loader_setting setting)
{
	return (uint64_t)setting.depth << 32 | setting.block_bytes;
}
static inline struct loader_setting loader_setting_unpack(uint64_t packed)
{
	return (struct loader_setting){(uint32_t)packed,
				       (uint32_t)(packed >> 32)};
}

#endif
