/* SPDX-License-Identifier: Apache-2.0 */
#include "loader_tune.h"

#define KIB (1u << 10)
#define MIB (1u << 20)

/* Within this of the best is as good. */
#define AS_GOOD 0.98

/* The first is what is used where nothing is tried. */
static const struct loader_setting usual[] = {
	{1 * MIB, 8},	 {256 * KIB, 16}, {512 * KIB, 8},
	{512 * KIB, 16}, {1 * MIB, 4},	  {1 * MIB, 16},
	{2 * MIB, 4},	 {2 * MIB, 8},	  {4 * MIB, 4},
};

static bool has(const struct loader_tune *tune, struct loader_setting setting)
{
	uint32_t i;

	for (i = 0; i < tune->count; i++)
		if (loader_setting_pack(tune->settings[i]) ==
		    loader_setting_pack(setting))
			return true;
	return false;
}

struct loader_setting loader_tune_init(struct loader_tune *tune,
				       struct loader_setting fixed, bool one)
{
	uint32_t i;

	*tune = (struct loader_tune){.count = 0};
	if (one)
		fixed.depth = 1;
	for (i = 0; i < sizeof(usual) / sizeof(usual[0]); i++) {
		struct loader_setting setting = usual[i];

		if (fixed.block_bytes)
			setting.block_bytes = fixed.block_bytes;
		if (fixed.depth)
			setting.depth = fixed.depth;
		if (!has(tune, setting))
			tune->settings[tune->count++] = setting;
	}
	return tune->settings[0];
}

bool loader_tune_worth(const struct loader_tune *tune)
{
	return tune->count > 1;
}

/* There and back, so that drift hits all alike. */
static uint32_t index_of(const struct loader_tune *tune, uint32_t tried)
{
	return tried < tune->count ? tried : 2 * tune->count - 1 - tried;
}

struct loader_setting loader_tune_now(const struct loader_tune *tune)
{
	return tune->settings[index_of(tune, tune->tried)];
}

bool loader_tune_next(struct loader_tune *tune, double rate)
{
	tune->rates[index_of(tune, tune->tried++)] += rate;
	return tune->tried < 2 * tune->count;
}

static uint64_t in_flight(struct loader_setting setting)
{
	return (uint64_t)setting.block_bytes * setting.depth;
}

struct loader_setting loader_tune_best(const struct loader_tune *tune)
{
	double best = 0;
	uint32_t i, found;

	for (i = 0; i < tune->count; i++)
		if (tune->rates[i] > best)
			best = tune->rates[i];
	for (i = 0, found = tune->count; i < tune->count; i++)
		if (tune->rates[i] >= best * AS_GOOD &&
		    (found == tune->count ||
		     in_flight(tune->settings[i]) <
			     in_flight(tune->settings[found])))
			found = i;
	return tune->settings[found];
}
