/* SPDX-License-Identifier: Apache-2.0 */
/* How mapped memory is cut into ranges for registration.  The addresses are
 * made up; nothing is there. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "register.h"

#define PAGE	 UINT64_C(4096)
#define HUGE	 (UINT64_C(2) << 20)
#define GIB	 (UINT64_C(1) << 30)
#define BASE	 (UINT64_C(1) << 45)
#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

struct cut {
	uint64_t mapping, bytes, row, stride, chunk;
};

static uint64_t gcd(uint64_t a, uint64_t b)
{
	return b ? gcd(b, a % b) : a;
}

static uint64_t lcm(uint64_t a, uint64_t b)
{
	return a / gcd(a, b) * b;
}

static uint64_t max(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

static void report(const struct cut *c, const char *what, uint64_t where)
{
	fail_msg("mapping %#" PRIx64 " + %" PRIu64 ", row %#" PRIx64
		 ", stride %" PRIu64 ", chunk %" PRIu64 ": %s at %#" PRIx64,
		 c->mapping, c->bytes, c->row, c->stride, c->chunk, what,
		 where);
}

/* Is any page's end a row's end as well? */
static int has_ends(const struct cut *c)
{
	return c->row % gcd(c->stride, PAGE) == 0;
}

static void check_end(const struct cut *c, uint64_t end)
{
	int huge = lcm(c->stride, HUGE) <= c->chunk &&
		   c->row % gcd(c->stride, HUGE) == 0;

	if (end % PAGE)
		report(c, "no page ends", end);
	/* before the first row: those of a neighbour */
	if (has_ends(c) &&
	    (end > c->row ? end - c->row : c->row - end) % c->stride)
		report(c, "no row ends", end);
	if (huge && end % HUGE)
		report(c, "no huge page ends", end);
}

static void check(struct cut c)
{
	uint64_t period = has_ends(&c) ? lcm(c.stride, PAGE) : PAGE;
	uint64_t at = c.mapping, end = c.mapping + c.bytes;
	struct cuda_ranges ranges = {0};
	struct engram_error err;

	assert_int_equal(cuda_ranges_cut(&ranges, (void *)c.mapping, c.bytes,
					 (void *)c.row, c.stride, c.chunk,
					 &err),
			 ENGRAM_OK);
	for (uint32_t i = 0; i < ranges.count; i++) {
		const struct cuda_range *range = &ranges.list[i];

		if ((uintptr_t)range->address != at)
			report(&c, "a gap, or twice the same", at);
		at += range->bytes;
		if (!range->bytes || range->bytes > max(c.chunk, period))
			report(&c, "too long, or nothing", at);
		if (i + 1 < ranges.count)
			check_end(&c, at);
		assert_int_equal(range->mapping, 0);
	}
	if (at != end)
		report(&c, "the end is not the mapping's", at);
	/* two neighbours are longer than a chunk, or they would be one */
	if (ranges.count > 2 + 2 * (c.bytes / max(c.chunk, period)))
		report(&c, "more ranges than it takes", at);
	assert_int_equal(ranges.bytes, c.bytes);
	assert_int_equal(ranges.mappings, 1);
	assert_int_equal(ranges.registered, 0);
	cuda_ranges_free(&ranges);
}

static const uint64_t strides[] = {264, 256, 8,	   66,	 33,
				   132, 528, 1040, 4096, 1};
static const uint64_t chunks[] = {
	1,	     PAGE,	2 * PAGE,	 100000,  HUGE,
	HUGE + PAGE, 33 * HUGE, 64 * HUGE - 264, 4 * GIB, 256 * GIB};
static const uint64_t sizes[] = {1, PAGE + 1, 40 * PAGE, 9 * HUGE - 7,
				 GIB + 12345};

/* What a rank maps whose first row is this one: whole pages around it. */
static void check_rank(uint64_t row, uint64_t bytes, uint64_t stride,
		       uint64_t chunk, uint64_t page)
{
	uint64_t begin = row / page * page;
	uint64_t end = (row + bytes + page - 1) / page * page;

	/* so that the list stays short */
	if ((end - begin) / max(chunk, lcm(stride, PAGE)) > 100000)
		return;
	check((struct cut){begin, end - begin, row, stride, chunk});
}

static void covered_exactly(void **state)
{
	static const uint64_t first[] = {0, 1, 3, 31, 4095, 12345677};

	(void)state;
	for (size_t s = 0; s < COUNT(strides); s++)
		for (size_t c = 0; c < COUNT(chunks); c++)
			for (size_t b = 0; b < COUNT(sizes); b++)
				for (size_t f = 0; f < COUNT(first); f++) {
					uint64_t row =
						BASE + first[f] * strides[s];

					check_rank(row, sizes[b], strides[s],
						   chunks[c], PAGE);
					check_rank(row, sizes[b], strides[s],
						   chunks[c], HUGE);
				}
}

/* Where rows never end with a page, ranges end with pages. */
static void rows_across_all_pages(void **state)
{
	(void)state;
	for (size_t c = 0; c < COUNT(chunks); c++) {
		check_rank(BASE + 4, 40 * PAGE, 264, chunks[c], PAGE);
		check_rank(BASE + 12, 9 * HUGE, 264, chunks[c], PAGE);
		check_rank(BASE + 1, 9 * HUGE, 4096, chunks[c], HUGE);
	}
}

/* No addition overflows, no count does. */
static void a_tebibyte(void **state)
{
	(void)state;
	for (size_t s = 0; s < COUNT(strides); s++)
		for (uint64_t chunk = GIB / 4; chunk <= CUDA_CHUNK_MAX;
		     chunk *= 2) {
			check_rank(BASE, UINT64_C(1) << 40, strides[s], chunk,
				   PAGE);
			check_rank(BASE + 77777777 * strides[s],
				   UINT64_C(1) << 40, strides[s], chunk - 4096,
				   PAGE);
		}
}

static void several_mappings(void **state)
{
	struct cuda_ranges ranges = {0};
	struct engram_error err;

	(void)state;
	for (uint32_t i = 0; i < 3; i++)
		assert_int_equal(
			cuda_ranges_cut(&ranges, (void *)(BASE + i * GIB),
					12 * PAGE, (void *)(BASE + i * GIB),
					256, 4 * PAGE, &err),
			ENGRAM_OK);
	assert_int_equal(ranges.mappings, 3);
	assert_int_equal(ranges.count, 9);
	assert_int_equal(ranges.bytes, 36 * PAGE);
	for (uint32_t i = 0; i < 9; i++) {
		assert_int_equal(ranges.list[i].mapping, i / 3);
		assert_int_equal((uintptr_t)ranges.list[i].address,
				 BASE + i / 3 * GIB + i % 3 * 4 * PAGE);
	}
	/* a rank without rows */
	assert_int_equal(cuda_ranges_cut(&ranges, (void *)BASE, 0, (void *)BASE,
					 256, PAGE, &err),
			 ENGRAM_OK);
	assert_int_equal(ranges.count, 9);
	cuda_ranges_free(&ranges);
	assert_null(ranges.list);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(covered_exactly),
		cmocka_unit_test(rows_across_all_pages),
		cmocka_unit_test(a_tebibyte),
		cmocka_unit_test(several_mappings),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
