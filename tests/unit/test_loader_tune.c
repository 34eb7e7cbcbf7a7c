/* SPDX-License-Identifier: Apache-2.0 */
/* Which setting is found on drives whose rates are known. */
#include "loader_tune.h"
#include "segment_fixture.h"

#define MIB (1u << 20)

/* Bytes in flight that the drive needs, and what one read costs. */
struct drive {
	double in_flight, read_cost;
};

static double rate(const struct drive *drive, struct loader_setting s)
{
	const double in_flight = (double)s.block_bytes * s.depth;
	const double filled = in_flight / drive->in_flight;

	return (filled < 1 ? filled : 1) * (double)s.block_bytes /
	       ((double)s.block_bytes + drive->read_cost);
}

static struct loader_setting find(const struct drive *drive,
				  struct loader_setting fixed, bool one)
{
	struct loader_tune tune;
	uint32_t tried = 1;

	loader_tune_init(&tune, fixed, one);
	while (loader_tune_next(&tune, rate(drive, loader_tune_now(&tune))))
		tried++;
	CHECK(tried == 2 * tune.count);
	return loader_tune_best(&tune);
}

static void test_drives(void)
{
	static const struct loader_setting free_choice;
	const struct drive small = {2.0 * MIB, 0}, deep = {16.0 * MIB, 4096},
			   costly = {8.0 * MIB, 256.0 * 1024};
	struct loader_setting s = find(&small, free_choice, false);

	/* All fill it: the fewest bytes in flight. */
	CHECK((uint64_t)s.block_bytes * s.depth == 4 * MIB);
	s = find(&deep, free_choice, false);
	CHECK((uint64_t)s.block_bytes * s.depth == 16 * MIB);
	s = find(&costly, free_choice, false);
	CHECK(s.block_bytes == 4 * MIB);
}

static void test_fixed(void)
{
	const struct drive deep = {16.0 * MIB, 4096};
	struct loader_setting fixed = {.block_bytes = 65536}, s;
	struct loader_tune tune;

	s = find(&deep, fixed, false);
	CHECK(s.block_bytes == 65536 && s.depth == 16);
	fixed = (struct loader_setting){.depth = 3};
	s = find(&deep, fixed, false);
	CHECK(s.block_bytes == 4 * MIB && s.depth == 3);
	/* Nothing is left to try. */
	fixed = (struct loader_setting){65536, 3};
	s = loader_tune_init(&tune, fixed, false);
	CHECK(s.block_bytes == 65536 && s.depth == 3);
	CHECK(!loader_tune_worth(&tune));
	/* preadv: only how much is read at once, and each but once. */
	fixed = (struct loader_setting){0};
	s = loader_tune_init(&tune, fixed, true);
	CHECK(s.block_bytes == MIB && s.depth == 1);
	CHECK(tune.count == 5);
}

static void test_pack(void)
{
	const struct loader_setting s = {4u << 20, 256};
	const struct loader_setting t =
		loader_setting_unpack(loader_setting_pack(s));

	CHECK(t.block_bytes == s.block_bytes && t.depth == s.depth);
}

int main(void)
{
	test_drives();
	test_fixed();
	test_pack();
	return 0;
}
