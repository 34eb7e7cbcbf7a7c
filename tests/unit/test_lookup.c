/* SPDX-License-Identifier: Apache-2.0 */
/* Every code with every scale, rows and ids that end where memory does, and
 * arguments that are refused. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "engram_kernels.h"
#include "engram_segment.h"
#include "float_env.h"
#include "guard.h"

#define NAN_BITS 0x7fff
#define FILL	 0xa5a5

static void each_isa(void (*body)(void))
{
	for (int isa = ENGRAM_ISA_SCALAR; isa <= ENGRAM_ISA_AVX512; isa++)
		if (!engram_cpu_set_isa((enum engram_isa)isa))
			body();
	engram_cpu_set_isa(ENGRAM_ISA_AUTO);
}

static uint32_t random_bits(void)
{
	static uint64_t state = 1;

	state = state * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(state >> 33);
}

/* ---- the formats as their definitions say, in double ---- */

static double value_of_code(uint8_t code)
{
	int exponent = code >> 3 & 15, mantissa = code & 7;
	double size = exponent ? ldexp(8 + mantissa, exponent - 10)
			       : ldexp(mantissa, -9);

	if ((code & 0x7f) == 0x7f)
		return NAN;
	return code & 0x80 ? -size : size;
}

static double value_of_scale(uint8_t byte)
{
	if (!byte)
		return 0;
	return byte == 255 ? INFINITY : ldexp(1, byte - 127);
}

static double value_of_bf16(uint16_t bits)
{
	int exponent = bits >> 7 & 255, mantissa = bits & 127;
	double size = exponent ? ldexp(128 + mantissa, exponent - 134)
			       : ldexp(mantissa, -133);

	if (exponent == 255)
		size = mantissa ? NAN : INFINITY;
	return bits & 0x8000 ? -size : size;
}

/* Nearest bf16, ties to even. */
static uint16_t bf16_of_value(double value)
{
	uint16_t sign = signbit(value) ? 0x8000 : 0;
	double size = fabs(value), steps;
	int exponent;

	if (isnan(value))
		return NAN_BITS;
	if (size == 0)
		return sign;
	if (isinf(size))
		return sign | 0x7f80;
	exponent = ilogb(size) < -126 ? -126 : ilogb(size);
	steps = nearbyint(ldexp(size, 7 - exponent));
	/* 128 steps are the leading one, which the exponent field counts */
	steps += (exponent + 126) * 128.0;
	return sign | (uint16_t)(steps > 0x7f80 ? 0x7f80 : steps);
}

static uint16_t want(const struct engram_rows *rows, int64_t row, uint32_t at)
{
	const uint8_t *codes = rows->codes, *scales = rows->scales;
	double scale = 1, value;
	uint16_t wide;

	codes += row * rows->code_stride_bytes;
	if (rows->dtype == ENGRAM_BF16) {
		memcpy(&wide, codes + at * 2, sizeof(wide));
		value = value_of_bf16(wide);
	} else {
		value = value_of_code(codes[at]);
	}
	if (rows->scale_scheme == ENGRAM_SCALE_TENSOR)
		scale = rows->tensor_scale;
	if (rows->scale_scheme == ENGRAM_SCALE_UE8M0_BLOCK)
		scale = value_of_scale(scales[row * rows->scale_stride_bytes +
					      at / rows->block_size]);
	return bf16_of_value(value * scale);
}

/* One row after the other, to the last byte before the guard. */
static void check_rows(const struct engram_rows *rows, int64_t count,
		       const struct guarded *room)
{
	size_t size = (size_t)count * rows->dim * sizeof(uint16_t);
	uint16_t *out = guard_tail(room, size);
	struct engram_error err;

	memset(out, 0xa5, size);
	assert_int_equal(engram_cpu_decode(rows, count, out, &err), 0);
	for (int64_t r = 0; r < count; r++)
		for (uint32_t d = 0; d < rows->dim; d++)
			if (out[r * rows->dim + d] != want(rows, r, d))
				fail_msg("row %lld, element %u: %04x, not %04x",
					 (long long)r, d,
					 out[r * rows->dim + d],
					 want(rows, r, d));
}

static uint8_t every[256];

static struct engram_rows every_code(void)
{
	return (struct engram_rows){
		.codes = every, /* the same for each row */
		.scales = every,
		.scale_stride_bytes = 1,
		.row_end = 256,
		.dtype = ENGRAM_F8_E4M3,
		.scale_scheme = ENGRAM_SCALE_UE8M0_BLOCK,
		.dim = 256,
		.block_size = 256,
	};
}

static void check_every_code(void)
{
	struct guarded room = guard_alloc(256 * 256 * 2);
	struct engram_rows rows = every_code();

	check_rows(&rows, 256, &room);
	guard_free(&room);
}

static void test_every_code_and_scale(void **state)
{
	(void)state;
	each_isa(check_every_code);
}

static void check_float_env(void)
{
	static uint16_t first[256 * 256], out[256 * 256];
	struct engram_rows rows = every_code();
	int32_t id = 1;
	struct engram_lookup_args args = {.ids = &id,
					  .num_tokens = 1,
					  .local_heads = 1,
					  .total_heads = 1};
	struct engram_error err;

	assert_int_equal(engram_cpu_decode(&rows, 256, first, &err), 0);
	float_env_spoil();
	assert_int_equal(engram_cpu_decode(&rows, 256, out, &err), 0);
	assert_true(float_env_heal());
	assert_memory_equal(out, first, sizeof(out));
	float_env_spoil();
	assert_int_equal(engram_cpu_lookup(&rows, &args, out, &err), 0);
	assert_true(float_env_heal());
	assert_memory_equal(out, first + 256, 256 * sizeof(*out));
}

/* The caller's rounding and flushing change nothing and are kept. */
static void test_float_env(void **state)
{
	(void)state;
	each_isa(check_float_env);
}

/* Every length, packed at any address, up to the end of a mapping. */
static void check_ends(void)
{
	const uint32_t blocks[] = {1, 7, 16, 32};
	struct guarded in = guard_alloc(1 << 16), out = guard_alloc(1 << 16);

	for (uint32_t dim = 1; dim <= 264; dim += dim < 140 ? 1 : 31)
		for (int i = 0; i < 8; i++) {
			uint32_t block = blocks[i % 4];
			int wide = i / 4;
			size_t scales = (dim + block - 1) / block;
			size_t codes = (size_t)dim << wide;
			size_t stride = codes + scales;
			uint8_t *at = guard_tail(&in, 3 * stride);
			struct engram_rows rows = {
				.codes = at,
				.scales = at + codes,
				.code_stride_bytes = (int64_t)stride,
				.scale_stride_bytes = (int64_t)stride,
				.dtype = wide ? ENGRAM_BF16 : ENGRAM_F8_E4M3,
				.scale_scheme = ENGRAM_SCALE_UE8M0_BLOCK,
				.dim = dim,
				.block_size = block,
				.tensor_scale = 0x1.8p-3f,
			};

			for (size_t b = 0; b < 3 * stride; b++)
				at[b] = (uint8_t)random_bits();
			/* bf16 products are rounded twice below the smallest
			 * normal fp32, which the model does not do */
			for (size_t r = 0; wide && r < 3; r++)
				for (size_t b = 0; b < scales; b++)
					at[r * stride + codes + b] = 127;
			check_rows(&rows, 3, &out);
			/* without scales the codes end at the guard */
			rows.codes = guard_tail(&in, 3 * codes);
			rows.code_stride_bytes = (int64_t)codes;
			rows.scales = NULL;
			rows.scale_scheme =
				wide ? ENGRAM_SCALE_NONE : ENGRAM_SCALE_TENSOR;
			check_rows(&rows, 3, &out);
		}
	guard_free(&in);
	guard_free(&out);
}

static void test_report_29_ids_past_the_ends(void **state)
{
	(void)state;
	each_isa(check_ends);
}

/* Five heads over two ranks: the second one's last is padded, and what would
 * be its id is behind the end of memory. */
static void check_padded_head(void)
{
	struct guarded room = guard_alloc(4096);
	struct engram_rows rows = every_code();
	struct engram_error err;

	for (int tokens = 1; tokens < 20; tokens++) {
		size_t count = (size_t)tokens * 5;
		int32_t *ids = guard_tail(&room, count * sizeof(*ids));
		uint64_t misses = 0;
		struct engram_lookup_args args = {
			.ids = ids,
			.ids_token_stride = 5,
			.ids_head_stride = 1,
			.num_tokens = tokens,
			.head_begin = 3,
			.local_heads = 3,
			.total_heads = 5,
			.misses = &misses,
		};
		static uint16_t out[20][3][256];
		uint64_t outside = 0;

		for (size_t i = 0; i < count; i++)
			ids[i] = (int32_t)(random_bits() % 300) - 20;
		memset(out, 0xa5, sizeof(out));
		assert_int_equal(
			engram_cpu_lookup(&rows, &args, out[0][0], &err), 0);
		for (int t = 0; t < tokens; t++)
			for (int h = 0; h < 3; h++) {
				int32_t id = h < 2 ? ids[t * 5 + 3 + h] : -1;
				int here = id >= 0 && id < 256;

				outside += h < 2 && !here;
				for (uint32_t d = 0; d < 256; d++)
					assert_int_equal(
						out[t][h][d],
						here ? want(&rows, id, d) : 0);
			}
		assert_int_equal(misses, outside);
		assert_int_equal(out[tokens][0][0], FILL);
	}
	guard_free(&room);
}

static void test_padded_head(void **state)
{
	(void)state;
	each_isa(check_padded_head);
}

/* Heads before tokens, backwards, and one id for all. */
static void test_strides(void **state)
{
	const int32_t ids[6] = {1, 2, 3, 4, 5, 6};
	const struct {
		int first;
		int64_t token, head;
	} walks[] = {{0, 1, 2}, {5, -2, -1}, {4, 0, 0}, {5, -1, -3}};
	struct engram_rows rows = every_code();
	static uint16_t out[2][2][256];
	struct engram_error err;

	(void)state;
	for (size_t i = 0; i < sizeof(walks) / sizeof(*walks); i++) {
		struct engram_lookup_args args = {
			.ids = ids + walks[i].first,
			.ids_token_stride = walks[i].token,
			.ids_head_stride = walks[i].head,
			.num_tokens = 2,
			.local_heads = 2,
			.total_heads = 2,
		};

		assert_int_equal(
			engram_cpu_lookup(&rows, &args, out[0][0], &err), 0);
		for (int t = 0; t < 2; t++)
			for (int h = 0; h < 2; h++)
				assert_int_equal(
					out[t][h][0x38],
					want(&rows,
					     args.ids[t * walks[i].token +
						      h * walks[i].head],
					     0x38));
	}
}

static void refuse(const struct engram_rows *rows,
		   const struct engram_lookup_args *args, uint16_t *out,
		   const char *message, const char *fix)
{
	struct engram_error err;

	assert_int_equal(engram_cpu_lookup(rows, args, out, &err),
			 ENGRAM_EINVAL);
	assert_string_equal(err.message, message);
	assert_string_equal(err.fix, fix);
}

static void test_refusals(void **state)
{
	const int32_t id = 0;
	const struct engram_lookup_args good = {.ids = &id,
						.num_tokens = 1,
						.local_heads = 1,
						.total_heads = 1};
	struct engram_lookup_args args = good;
	struct engram_rows rows = every_code();
	struct engram_error err;
	uint16_t out[256] = {FILL};

	(void)state;
	args.num_tokens = -1;
	refuse(&rows, &args, out, "num_tokens: negative", "give 0 or more");
	args.num_tokens = INT64_MAX / 256; /* times 512 bytes wraps */
	refuse(&rows, &args, out, "num_tokens: more rows than memory can hold",
	       "pass fewer tokens at once");
	args.num_tokens = INT64_MAX;
	args.local_heads = UINT32_MAX; /* wraps to a few rows */
	refuse(&rows, &args, out, "num_tokens: more rows than memory can hold",
	       "pass fewer tokens at once");
	args = good;
	args.ids = NULL;
	refuse(&rows, &args, out, "ids: NULL",
	       "pass an id for each token and head");
	args = good;
	args.head_begin = UINT32_MAX;
	refuse(&rows, &args, out, "head_begin, local_heads: heads past 2^32",
	       "give the heads of one rank");
	refuse(&rows, &good, NULL, "out: NULL",
	       "pass room for [num_tokens, local_heads, dim]");
	rows.codes = NULL;
	refuse(&rows, &good, out, "codes: NULL",
	       "pass the rows, or an empty range of them");
	rows.row_end = 0; /* not what decode reads */
	assert_int_equal(engram_cpu_decode(&rows, 1, out, &err), ENGRAM_EINVAL);
	assert_string_equal(err.message, "codes: NULL");
	rows = every_code();
	assert_int_equal(engram_cpu_decode(&rows, -1, out, &err),
			 ENGRAM_EINVAL);
	assert_string_equal(err.message, "num_rows: negative");
	assert_int_equal(engram_cpu_decode(&rows, INT64_MAX / 256, out, &err),
			 ENGRAM_EINVAL);
	assert_string_equal(err.message, "num_rows: more than memory can hold");
	assert_int_equal(engram_cpu_decode(&rows, 1, NULL, &err),
			 ENGRAM_EINVAL);
	assert_string_equal(err.message, "out: NULL");
	rows.dim = 0;
	refuse(&rows, &good, out, "dim: zero", "give 1 or more");
	rows = every_code();
	rows.scale_scheme = 3;
	refuse(&rows, &good, out, "scale_scheme: unknown", "use 0, 1 or 2");
	rows = every_code();
	rows.block_size = 0;
	refuse(&rows, &good, out,
	       "block_size, scales: blocks without a size or without scales",
	       "pass both, or another scale_scheme");
	assert_int_equal(out[0], FILL);
}

/* A block size past all rows: every code under the first scale. */
static void test_large_block(void **state)
{
	const int32_t id = 0;
	const struct engram_lookup_args args = {.ids = &id,
						.num_tokens = 1,
						.local_heads = 1,
						.total_heads = 1};
	struct engram_rows rows = every_code();
	uint8_t codes[256], scale = 0, want = 128;
	const struct engram_raw_out raw = {.codes = codes, .scales = &scale};
	struct engram_error err;

	(void)state;
	rows.block_size = UINT32_MAX;
	rows.scale_scheme = ENGRAM_SCALE_UE8M0_BLOCK;
	rows.scales = &want;
	assert_int_equal(
		engram_raw_scale_bytes(&rows, 1, 1, ENGRAM_SCALES_PLAIN), 1);
	assert_int_equal(engram_cpu_lookup_raw(&rows, &args, &raw, &err),
			 ENGRAM_OK);
	assert_int_equal(scale, want);
}

static int set_up(void **state)
{
	(void)state;
	for (int i = 0; i < 256; i++)
		every[i] = (uint8_t)i;
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_every_code_and_scale),
		cmocka_unit_test(test_float_env),
		cmocka_unit_test(test_report_29_ids_past_the_ends),
		cmocka_unit_test(test_padded_head),
		cmocka_unit_test(test_strides),
		cmocka_unit_test(test_large_block),
		cmocka_unit_test(test_refusals),
	};

	return cmocka_run_group_tests(tests, set_up, NULL);
}
