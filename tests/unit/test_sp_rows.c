/* SPDX-License-Identifier: Apache-2.0 */
/* Sequence-parallel rows: ranks with padded heads, with fewer tokens, with
 * none, up to the ends of memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "engram_kernels.h"
#include "guard.h"

#define DIM	3
#define PADDING 0xdead

/* Names token, head and element; never 0. */
static uint16_t element(int64_t token, uint32_t head, uint32_t d)
{
	return (uint16_t)(1 + token * 1000 + head * 10 + d);
}

/* What an all-gather leaves: the ranks one after the other. */
static void gather(const struct engram_sp_rows_args *args, uint16_t *to)
{
	for (uint32_t rank = 0; rank < args->tp_size; rank++)
		for (int64_t t = 0; t < args->num_tokens; t++)
			for (uint32_t i = 0; i < args->local_heads; i++) {
				uint32_t head = rank * args->local_heads + i;
				int real = head < args->total_heads;

				for (uint32_t d = 0; d < DIM; d++)
					*to++ = real ? element(t, head, d)
						     : PADDING;
			}
}

static void check_rank(const struct engram_sp_rows_args *args, int64_t chunk,
		       const struct guarded *room)
{
	size_t count = (size_t)chunk * args->total_heads * DIM;
	uint16_t *out = guard_tail(room, count * sizeof(*out));
	struct engram_error err;

	memset(out, 0xa5, count * sizeof(*out));
	assert_int_equal(engram_cpu_sp_rows(args, out, &err), 0);
	for (int64_t i = 0; i < chunk; i++) {
		int64_t token = args->tp_rank * chunk + i;
		int there = token < args->num_tokens;

		for (uint32_t h = 0; h < args->total_heads; h++)
			for (uint32_t d = 0; d < DIM; d++, out++)
				assert_int_equal(
					*out, there ? element(token, h, d) : 0);
	}
}

static void test_every_rank(void **state)
{
	struct guarded in = guard_alloc(1 << 16), out = guard_alloc(1 << 16);

	(void)state;
	for (uint32_t size = 1; size <= 8; size++)
		for (uint32_t heads = 1; heads <= 24; heads += 1 + heads / 6)
			for (int64_t tokens = 0; tokens <= 17; tokens++) {
				uint32_t local = (heads + size - 1) / size;
				size_t bytes = sizeof(uint16_t) * size *
					       (size_t)tokens * local * DIM;
				uint16_t *gathered = guard_tail(&in, bytes);
				struct engram_sp_rows_args args = {
					.gathered = gathered,
					.num_tokens = tokens,
					.tp_size = size,
					.local_heads = local,
					.total_heads = heads,
					.dim = DIM,
				};

				gather(&args, gathered);
				for (; args.tp_rank < size; args.tp_rank++)
					check_rank(&args,
						   (tokens + size - 1) / size,
						   &out);
			}
	guard_free(&in);
	guard_free(&out);
}

static void refuse(const struct engram_sp_rows_args *args, uint16_t *out,
		   const char *message, const char *fix)
{
	struct engram_error err;

	assert_int_equal(engram_cpu_sp_rows(args, out, &err), ENGRAM_EINVAL);
	assert_string_equal(err.message, message);
	assert_string_equal(err.fix, fix);
}

static void test_refusals(void **state)
{
	const char *fix = "give a rank below the size, and as many local heads "
			  "as the lookup had";
	uint16_t gathered[2 * DIM], out[DIM] = {0xa5a5};
	const struct engram_sp_rows_args good = {.gathered = gathered,
						 .num_tokens = 1,
						 .tp_size = 2,
						 .local_heads = 1,
						 .total_heads = 2,
						 .dim = DIM};
	struct engram_sp_rows_args args = good;

	(void)state;
	refuse(&good, NULL, "out: NULL", "pass it, or zero tokens");
	args.gathered = NULL;
	refuse(&args, out, "gathered: NULL", "pass it, or zero tokens");
	args = good;
	args.tp_rank = 2;
	refuse(&args, out, "rank 2 of 2, 1 heads each, 2 in all, 1 tokens",
	       fix);
	args = good;
	args.total_heads = 3;
	refuse(&args, out, "rank 0 of 2, 1 heads each, 3 in all, 1 tokens",
	       fix);
	args = good;
	args.num_tokens = -1;
	refuse(&args, out, "rank 0 of 2, 1 heads each, 2 in all, -1 tokens",
	       fix);
	args = good;
	args.tp_size = 0;
	refuse(&args, out, "rank 0 of 0, 1 heads each, 2 in all, 1 tokens",
	       fix);
	assert_int_equal(out[0], 0xa5a5);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_every_rank),
		cmocka_unit_test(test_refusals),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
