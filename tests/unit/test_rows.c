/* SPDX-License-Identifier: Apache-2.0 */
/* lookup, decode, gate and sp_rows where the golden files do not reach; each
 * with every instruction set. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engram_kernels.h"
#include "engram_segment.h"

#define DIM   40 /* one whole block of 32 and a part of one */
#define NROWS 9
#define FILL  0xa5a5

static uint8_t codes[NROWS][DIM], scales[NROWS][2];

static struct engram_rows all_rows(void)
{
	return (struct engram_rows){
		.codes = codes,
		.scales = scales,
		.code_stride_bytes = DIM,
		.scale_stride_bytes = 2,
		.row_begin = 100,
		.row_end = 100 + NROWS,
		.dtype = ENGRAM_F8_E4M3,
		.scale_scheme = ENGRAM_SCALE_UE8M0_BLOCK,
		.dim = DIM,
		.block_size = 32,
		.tensor_scale = 2,
	};
}

/* Run a test body with each instruction set that is there. */
static void each_isa(void (*body)(void))
{
	for (int isa = ENGRAM_ISA_SCALAR; isa <= ENGRAM_ISA_AVX512; isa++)
		if (!engram_cpu_set_isa((enum engram_isa)isa))
			body();
	engram_cpu_set_isa(ENGRAM_ISA_AUTO);
}

static uint16_t bf16(float value)
{
	uint32_t bits;

	memcpy(&bits, &value, sizeof(bits));
	assert_int_equal(bits & 0xffff, 0);
	return (uint16_t)(bits >> 16);
}

/* Five heads over two ranks: the second has heads 3 and 4 and a padded one.
 * Behind each token's ids stand others that name rows of this rank. */
static void check_heads(void)
{
	const int32_t ids[2][6] = {{-1, -1, -1, 100, 108, 101},
				   {-1, -1, -1, 99, 109, 101}};
	struct engram_rows rows = all_rows();
	uint64_t misses = 7;
	struct engram_lookup_args args = {
		.ids = ids[0],
		.ids_token_stride = 6,
		.ids_head_stride = 1,
		.num_tokens = 2,
		.head_begin = 3,
		.local_heads = 3,
		.total_heads = 5,
		.misses = &misses,
	};
	uint16_t out[2][3][DIM], row[NROWS][DIM], zero[DIM] = {0};
	struct engram_error err;

	memset(out, 0xa5, sizeof(out));
	assert_int_equal(engram_cpu_decode(&rows, NROWS, row[0], &err), 0);
	assert_int_equal(engram_cpu_lookup(&rows, &args, out[0][0], &err), 0);
	assert_memory_equal(out[0][0], row[0], sizeof(zero));
	assert_memory_equal(out[0][1], row[8], sizeof(zero));
	assert_memory_equal(out[0][2], zero, sizeof(zero));
	for (int i = 0; i < 3; i++)
		assert_memory_equal(out[1][i], zero, sizeof(zero));
	assert_int_equal(misses, 7 + 2);
}

static void test_heads(void **state)
{
	(void)state;
	each_isa(check_heads);
}

static void check_formats(void)
{
	const uint16_t wide[3] = {bf16(1.5f), bf16(-0.25f), 0xff81};
	uint8_t narrow[4] = {0x38, 0xb8, 0x01, 0x7f}; /* 1 -1 2^-9 NaN */
	uint8_t ends[2] = {0, 255};
	struct engram_rows rows = {
		.codes = narrow,
		.row_end = 1,
		.dtype = ENGRAM_F8_E4M3,
		.scale_scheme = ENGRAM_SCALE_TENSOR,
		.dim = 4,
		.tensor_scale = 4,
	};
	struct engram_error err;
	uint16_t out[4];

	assert_int_equal(engram_cpu_decode(&rows, 1, out, &err), 0);
	assert_int_equal(out[0], bf16(4));
	assert_int_equal(out[1], bf16(-4));
	assert_int_equal(out[2], bf16(0x1p-7f));
	assert_int_equal(out[3], 0x7fff);
	rows.scale_scheme = ENGRAM_SCALE_NONE;
	assert_int_equal(engram_cpu_decode(&rows, 1, out, &err), 0);
	assert_int_equal(out[0], bf16(1));
	rows.scale_scheme = ENGRAM_SCALE_UE8M0_BLOCK;
	rows.block_size = 1;
	rows.dim = 2;
	rows.scales = ends;
	assert_int_equal(engram_cpu_decode(&rows, 1, out, &err), 0);
	assert_int_equal(out[0], 0);
	assert_int_equal(out[1], bf16(-INFINITY));
	rows.dtype = ENGRAM_BF16;
	rows.scale_scheme = ENGRAM_SCALE_TENSOR;
	rows.codes = wide;
	rows.dim = 3;
	assert_int_equal(engram_cpu_decode(&rows, 1, out, &err), 0);
	assert_int_equal(out[0], bf16(6));
	assert_int_equal(out[1], bf16(-1));
	assert_int_equal(out[2], 0x7fff);
}

static void test_formats(void **state)
{
	(void)state;
	each_isa(check_formats);
}

/* 130 tokens, so two tiles of 128; three heads of two scales, so two tiles of
 * 4.  The tiles are written out here token by token, as cuBLASLt describes
 * them: 32 lines of 16 bytes, a line holding tokens n, n + 32, n + 64, n + 96.
 */
#define RAW_TOKENS 130
#define RAW_HEADS  3
#define RAW_COLS   (RAW_HEADS * 2)
#define RAW_TILES  4
static void check_raw(enum engram_scale_layout layout)
{
	static int32_t ids[RAW_TOKENS][RAW_HEADS];
	static uint8_t got[RAW_TOKENS][RAW_HEADS][DIM],
		got_scales[RAW_TILES * 512];
	static uint8_t want[sizeof(got_scales)];
	struct engram_rows rows = all_rows();
	struct engram_raw_out out = {got[0][0], got_scales, layout};
	uint64_t misses = 5;
	struct engram_lookup_args args = {
		.ids = ids[0],
		.ids_token_stride = RAW_HEADS,
		.ids_head_stride = 1,
		.num_tokens = RAW_TOKENS,
		.local_heads = RAW_HEADS,
		.total_heads = RAW_HEADS,
		.misses = &misses,
	};
	size_t bytes =
		engram_raw_scale_bytes(&rows, RAW_TOKENS, RAW_HEADS, layout);

	assert_int_equal(bytes, layout == ENGRAM_SCALES_PLAIN
					? RAW_TOKENS * RAW_COLS
					: RAW_TILES * 512);
	memset(got, 0xa5, sizeof(got));
	memset(got_scales, 0xa5, sizeof(got_scales));
	memset(want, 0, sizeof(want));
	for (int t = 0; t < RAW_TOKENS; t++)
		for (int h = 0; h < RAW_HEADS; h++) {
			int row = (t * 5 + h * 3) % (NROWS + 1);
			int missing = row == NROWS;

			ids[t][h] = 100 + row;
			for (int s = 0; s < 2; s++) {
				int col = h * 2 + s;
				int line = t % 32, quarter = t % 128 / 32;
				int at = t * RAW_COLS + col;

				if (layout != ENGRAM_SCALES_PLAIN)
					at = (t / 128 * 2 + col / 4) * 512 +
					     line * 16 + quarter * 4 + col % 4;
				want[at] = missing ? 0 : scales[row][s];
			}
		}
	assert_int_equal(engram_cpu_lookup_raw(&rows, &args, &out, NULL),
			 ENGRAM_OK);
	assert_memory_equal(got_scales, want, bytes);
	for (int t = 0; t < RAW_TOKENS; t++)
		for (int h = 0; h < RAW_HEADS; h++) {
			static const uint8_t zeros[DIM];
			int row = ids[t][h] - 100;

			misses -= row == NROWS;
			assert_memory_equal(got[t][h],
					    row == NROWS ? zeros : codes[row],
					    DIM);
		}
	assert_int_equal(misses, 5);
}

static void test_raw(void **state)
{
	(void)state;
	for (int i = 0; i < NROWS; i++) {
		for (int d = 0; d < DIM; d++)
			codes[i][d] = (uint8_t)(i * 37 + d * 11 + 1);
		scales[i][0] = (uint8_t)(i + 1);
		scales[i][1] = (uint8_t)(i + 101);
	}
	check_raw(ENGRAM_SCALES_PLAIN);
	check_raw(ENGRAM_SCALES_F8_128X4);
}

static void test_nothing_to_do(void **state)
{
	struct engram_rows rows = {.dtype = ENGRAM_F8_E4M3, .dim = 32};
	struct engram_lookup_args lookup = {.local_heads = 3, .total_heads = 3};
	struct engram_gate_args gate = {.dim = 8, .hc_mult = 2};
	struct engram_sp_rows_args sp = {
		.tp_size = 2, .local_heads = 1, .total_heads = 2, .dim = 8};
	struct engram_error err;
	uint16_t out = FILL;

	(void)state;
	assert_int_equal(engram_cpu_lookup(&rows, &lookup, &out, &err), 0);
	assert_int_equal(engram_cpu_decode(&rows, 0, &out, &err), 0);
	assert_int_equal(engram_cpu_gate(&gate, &out, &err), 0);
	assert_int_equal(engram_cpu_sp_rows(&sp, &out, &err), 0);
	assert_int_equal(out, FILL);
}

/* An empty shard: every id is a miss, and there are no rows to read. */
static void test_no_rows(void **state)
{
	struct engram_rows rows = {.dtype = ENGRAM_F8_E4M3,
				   .dim = 32,
				   .scale_scheme = ENGRAM_SCALE_UE8M0_BLOCK,
				   .block_size = 32};
	const int32_t ids[] = {0, -1, INT32_MAX, INT32_MIN};
	uint64_t misses = 0;
	struct engram_lookup_args args = {.ids = ids,
					  .ids_token_stride = 1,
					  .num_tokens = 4,
					  .local_heads = 1,
					  .total_heads = 1,
					  .misses = &misses};
	uint16_t out[4][32], zero[4][32] = {0};
	struct engram_error err;

	(void)state;
	memset(out, 0xa5, sizeof(out));
	assert_int_equal(engram_cpu_lookup(&rows, &args, out[0], &err), 0);
	assert_memory_equal(out, zero, sizeof(out));
	assert_int_equal(misses, 4);
}

#define GATE_TOKENS 2
#define GATE_COPIES 2
#define GATE_DIM    257
#define GATE_SIZE   (GATE_TOKENS * GATE_COPIES * GATE_DIM)

struct gate_data {
	uint16_t hidden[GATE_TOKENS][GATE_COPIES][GATE_DIM];
	uint16_t kv[GATE_TOKENS][(GATE_COPIES + 1) * GATE_DIM];
	uint16_t q[GATE_COPIES][GATE_DIM], k[GATE_COPIES][GATE_DIM];
	struct engram_gate_args args;
};

/* Small whole numbers, of which any sum is exact. */
static void fill_gate(struct gate_data *g)
{
	uint16_t *all = (uint16_t *)g;
	size_t count = offsetof(struct gate_data, args) / sizeof(*all);

	for (size_t i = 0; i < count; i++)
		all[i] = bf16((float)((int)(i * 7 % 5) - 2));
	g->args = (struct engram_gate_args){
		.num_tokens = GATE_TOKENS,
		.hc_mult = GATE_COPIES,
		.dim = GATE_DIM,
		.hidden = g->hidden[0][0],
		.hidden_stride = {GATE_COPIES * GATE_DIM, GATE_DIM, 1},
		.kv = g->kv[0],
		.kv_stride = {(GATE_COPIES + 1) * GATE_DIM, 1},
		.num_kv_tokens = GATE_TOKENS,
		.q_weight = g->q[0],
		.k_weight = g->k[0],
		.q_stride = {GATE_DIM, 1},
		.k_stride = {GATE_DIM, 1},
		.eps = 1e-6f,
		.clamp = 1e-6f,
		.out_stride = {GATE_COPIES * GATE_DIM, GATE_DIM, 1},
	};
}

/* A key of zeros: the gate opens by the clamp alone, sigmoid(sqrt(clamp)). */
static void check_clamp(void)
{
	static struct gate_data g;
	static uint16_t out[GATE_SIZE];
	struct engram_error err;

	fill_gate(&g);
	memset(g.hidden, 0, sizeof(g.hidden));
	memset(g.kv, 0, sizeof(g.kv));
	for (int i = 0; i < GATE_DIM; i++)
		g.kv[0][GATE_COPIES * GATE_DIM + i] = bf16(128);
	g.args.clamp = 4;
	assert_int_equal(engram_cpu_gate(&g.args, out, &err), 0);
	/* 128 * 0.8808 = 112.74, in bf16 112.5 */
	assert_int_equal(out[0], bf16(112.5f));
	assert_int_equal(out[GATE_DIM - 1], bf16(112.5f));
	assert_int_equal(out[GATE_COPIES * GATE_DIM], 0);
}

static void test_clamp(void **state)
{
	(void)state;
	each_isa(check_clamp);
}

/* Any strides and in place: the same bits as contiguous. */
static void check_gate_strides(void)
{
	static struct gate_data g;
	static uint16_t want[GATE_SIZE], got[GATE_SIZE * 3];
	static uint16_t kv[GATE_TOKENS * (GATE_COPIES + 1) * GATE_DIM * 2];
	struct engram_error err;

	fill_gate(&g);
	assert_int_equal(engram_cpu_gate(&g.args, want, &err), 0);
	for (size_t t = 0, at = 0; t < GATE_TOKENS; t++)
		for (int i = 0; i < (GATE_COPIES + 1) * GATE_DIM; i++, at += 2)
			kv[at] = g.kv[t][i];
	g.args.kv = kv;
	g.args.kv_stride[0] *= 2;
	g.args.kv_stride[1] = 2;
	for (int i = 0; i < 3; i++)
		g.args.out_stride[i] *= 3;
	assert_int_equal(engram_cpu_gate(&g.args, got, &err), 0);
	for (size_t i = 0; i < GATE_SIZE; i++)
		assert_int_equal(got[i * 3], want[i]);
	memcpy(g.args.out_stride, g.args.hidden_stride,
	       sizeof(g.args.out_stride));
	assert_int_equal(engram_cpu_gate(&g.args, g.hidden[0][0], &err), 0);
	assert_memory_equal(g.hidden, want, sizeof(want));
}

static void test_gate_strides(void **state)
{
	(void)state;
	each_isa(check_gate_strides);
}

static void test_isas_agree(void **state)
{
	static struct gate_data g;
	static uint16_t first[GATE_SIZE], out[GATE_SIZE];
	struct engram_error err;

	(void)state;
	fill_gate(&g);
	/* values whose sums round, so that another order would show */
	for (size_t i = 0; i < GATE_DIM; i++)
		g.q[0][i] = (uint16_t)(0x3e00 + i * 37 % 0x1ff);
	engram_cpu_set_isa(ENGRAM_ISA_SCALAR);
	assert_int_equal(engram_cpu_gate(&g.args, first, &err), 0);
	for (int isa = ENGRAM_ISA_AVX2; isa <= ENGRAM_ISA_AVX512; isa++) {
		if (engram_cpu_set_isa((enum engram_isa)isa))
			continue;
		assert_int_equal(engram_cpu_gate(&g.args, out, &err), 0);
		assert_memory_equal(out, first, sizeof(out));
	}
	engram_cpu_set_isa(ENGRAM_ISA_AUTO);
}

static void test_refusals(void **state)
{
	struct engram_rows rows = all_rows();
	struct engram_lookup_args args = {.total_heads = 1};
	struct engram_sp_rows_args sp = {
		.tp_rank = 2, .tp_size = 2, .local_heads = 1, .total_heads = 2};
	struct engram_error err;
	uint16_t out;

	(void)state;
	rows.dtype = 3;
	assert_int_equal(engram_cpu_lookup(&rows, &args, &out, &err),
			 ENGRAM_EINVAL);
	assert_string_equal(err.message, "dtype: unknown");
	assert_string_equal(err.fix, "use 1 or 2");
	rows = all_rows();
	rows.scales = NULL;
	assert_int_equal(engram_cpu_decode(&rows, 1, &out, &err),
			 ENGRAM_EINVAL);
	assert_string_equal(err.message, "block_size, scales: blocks without a "
					 "size or without scales");
	assert_int_equal(engram_cpu_sp_rows(&sp, &out, &err), ENGRAM_EINVAL);
	assert_string_equal(err.message,
			    "rank 2 of 2, 1 heads each, 2 in all, 0 tokens");
}

static int set_up(void **state)
{
	(void)state;
	for (int r = 0; r < NROWS; r++) {
		for (int d = 0; d < DIM; d++)
			codes[r][d] = (uint8_t)(r * 31 + d * 5 + 1);
		scales[r][0] = (uint8_t)(120 + r);
		scales[r][1] = (uint8_t)(130 - r);
	}
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_heads),
		cmocka_unit_test(test_formats),
		cmocka_unit_test(test_raw),
		cmocka_unit_test(test_nothing_to_do),
		cmocka_unit_test(test_no_rows),
		cmocka_unit_test(test_clamp),
		cmocka_unit_test(test_gate_strides),
		cmocka_unit_test(test_isas_agree),
		cmocka_unit_test(test_refusals),
	};

	return cmocka_run_group_tests(tests, set_up, NULL);
}
