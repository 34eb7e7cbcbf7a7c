/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "hash_model.h"

#define TOKENS	  4
#define ROW	  (MODEL_LAYERS * MODEL_COLS)
#define BLOCK	  2
#define NUM_SLOTS 12
#define CANARY	  (-77)

/* Two texts of four tokens: one plain, one with a dead token in it, whose id
 * no table has. */
static const struct model_token texts[2][TOKENS] = {
	{{0, 0}, {21, 0}, {49, 0}, {5, 0}},
	{{30, 0}, {999, 1}, {12, 0}, {0, 0}},
};
/* The blocks of the KV cache that each text has, in order. */
static const int32_t block_table[2][3] = {{4, 1, 0}, {2, 5, 0}};

static int32_t want[2][TOKENS][ROW];
static const struct engram_hash_params *params_now = &model_params;

static int64_t slot_of(int text, int64_t position)
{
	return (int64_t)block_table[text][position / BLOCK] * BLOCK +
	       position % BLOCK;
}

/* A batch of tokens [first, first + count) of both texts, contiguous. */
struct chunk {
	int32_t ids[2 * TOKENS];
	uint8_t dead[2 * TOKENS];
	int64_t positions[2 * TOKENS];
	int64_t slots[2 * TOKENS];
	int32_t bounds[3];
	int32_t window[2][MODEL_NGRAM - 1];
	uint8_t window_dead[2][MODEL_NGRAM - 1];
	struct engram_hash_batch batch;
};

static void fill(struct chunk *c, int64_t first, int64_t count)
{
	int64_t at = 0;

	memset(c, 0, sizeof(*c));
	for (int r = 0; r < 2; r++) {
		for (int64_t p = first; p < first + count; p++, at++) {
			c->ids[at] = texts[r][p].id;
			c->dead[at] = texts[r][p].dead;
			c->positions[at] = p;
			c->slots[at] = slot_of(r, p);
		}
		c->bounds[r + 1] = (int32_t)at;
		for (int64_t back = 0; back < MODEL_NGRAM - 1; back++) {
			int64_t p = first - 1 - back;

			c->window[r][back] = p < 0 ? -1 : texts[r][p].id;
			c->window_dead[r][back] = p >= 0 && texts[r][p].dead;
		}
	}
	c->batch = (struct engram_hash_batch){
		.num_tokens = at,
		.input_ids = c->ids,
		.input_stride = 1,
		.dead_mask = c->dead,
		.dead_stride = 1,
		.positions = c->positions,
		.position_stride = 1,
		.query_start_loc = c->bounds,
		.query_stride = 1,
		.num_requests = 2,
	};
}

static void use_window(struct chunk *c)
{
	c->batch.lookback_ids = c->window[0];
	c->batch.lookback_row_stride = MODEL_NGRAM - 1;
	c->batch.lookback_col_stride = 1;
	c->batch.lookback_dead = c->window_dead[0];
	c->batch.lookback_dead_row_stride = MODEL_NGRAM - 1;
	c->batch.lookback_dead_col_stride = 1;
	c->batch.lookback_depth = MODEL_NGRAM - 1;
}

static void use_cache(struct chunk *c, int32_t *cache)
{
	c->batch.slot_cache = cache;
	c->batch.num_slots = NUM_SLOTS;
	c->batch.slot_mapping = c->slots;
	c->batch.slot_stride = 1;
	c->batch.block_table = block_table[0];
	c->batch.block_row_stride = 3;
	c->batch.block_col_stride = 1;
	c->batch.num_block_rows = 2;
	c->batch.max_blocks = 3;
	c->batch.block_size = BLOCK;
}

/* Hash a chunk and compare it with the whole texts' ids. */
static void check(const struct chunk *c)
{
	int32_t out[2 * TOKENS][ROW];
	struct engram_error err;
	int64_t at = 0;

	for (int isa = ENGRAM_ISA_SCALAR; isa <= ENGRAM_ISA_AVX512; isa++) {
		if (engram_cpu_set_isa((enum engram_isa)isa))
			continue;
		memset(out, 0xee, sizeof(out));
		assert_int_equal(
			engram_cpu_hash(params_now, &c->batch, out[0], &err),
			ENGRAM_OK);
		for (at = 0; at < c->batch.num_tokens; at++) {
			int r = at >= c->bounds[1];

			assert_memory_equal(out[at], want[r][c->positions[at]],
					    sizeof(out[at]));
		}
	}
	engram_cpu_set_isa(ENGRAM_ISA_AUTO);
}

static const int64_t chunks[][2] = {{0, 1}, {1, 2}, {3, 1}};

static void test_whole(void **state)
{
	struct chunk c;

	(void)state;
	fill(&c, 0, TOKENS);
	check(&c);
	use_window(&c);
	check(&c);
}

static void test_report_31_chunks_with_lookback(void **state)
{
	struct chunk c;

	(void)state;
	for (size_t i = 0; i < 3; i++) {
		fill(&c, chunks[i][0], chunks[i][1]);
		use_window(&c);
		check(&c);
	}
}

static void test_report_31_chunks_with_slot_cache(void **state)
{
	int32_t cache[NUM_SLOTS] = {0};
	struct engram_error err;
	struct chunk c;

	(void)state;
	for (size_t i = 0; i < 3; i++) {
		fill(&c, chunks[i][0], chunks[i][1]);
		use_cache(&c, cache);
		assert_int_equal(
			engram_cpu_write_slots(&model_params, &c.batch, &err),
			ENGRAM_OK);
		check(&c);
	}
	assert_int_equal(cache[slot_of(0, 3)], model_compress(5));
	assert_int_equal(cache[slot_of(1, 1)], ENGRAM_DEAD_ID);
	assert_int_equal(cache[0], 0);
}

/* The window knows only the newest; the cache has the rest.  Where both
 * speak, the window is right. */
static void test_window_before_cache(void **state)
{
	int32_t cache[NUM_SLOTS] = {0};
	struct engram_error err;
	struct chunk c;

	(void)state;
	fill(&c, 0, 3);
	use_cache(&c, cache);
	assert_int_equal(engram_cpu_write_slots(&model_params, &c.batch, &err),
			 ENGRAM_OK);
	cache[slot_of(0, 2)] = 1; /* not what the window says */
	cache[slot_of(1, 2)] = 1;
	fill(&c, 3, 1);
	use_window(&c);
	use_cache(&c, cache);
	for (int r = 0; r < 2; r++)
		c.window[r][1] = c.window[r][2] = -1;
	check(&c);
}

/* What a token's n-grams are when those before it that end a text are dead. */
static void want_cut(const struct engram_hash_params *p)
{
	int32_t out[TOKENS][ROW];

	for (int r = 0; r < 2; r++)
		for (int t = 0; t < TOKENS; t++) {
			struct model_token text[TOKENS];

			memcpy(text, texts[r], sizeof(text));
			for (int i = 0; i < t; i++)
				for (uint32_t k = 0; k < p->num_cuts; k++)
					if (model_compress(text[i].id) ==
					    p->cut_ids[k])
						text[i].dead = 1;
			model_hash(text, TOKENS, out[0]);
			memcpy(want[r][t], out[t], sizeof(out[t]));
		}
}

/* The same whether the token that ends a text is in the batch, the window or
 * the cache. */
static void test_cuts(void **state)
{
	struct engram_hash_params params = model_params;
	struct engram_error err;
	struct chunk c;

	params.num_cuts = 2;
	params.cut_ids[0] = model_compress(12);
	params.cut_ids[1] = model_compress(49);
	want_cut(&params);
	params_now = &params;
	test_whole(state);
	test_report_31_chunks_with_lookback(state);
	test_report_31_chunks_with_slot_cache(state);
	test_window_before_cache(state);
	params_now = &model_params;
	for (int r = 0; r < 2; r++)
		model_hash(texts[r], TOKENS, want[r][0]);

	fill(&c, 0, 1);
	params.num_cuts = ENGRAM_CUTS_MAX + 1;
	assert_int_equal(engram_cpu_hash(&params, &c.batch, want[0][0], &err),
			 ENGRAM_EINVAL);
	assert_string_equal(err.path, "num_cuts");
}

/* Neither window nor cache: the pad id stands in and blocks nothing. */
static void test_unknown_is_pad(void **state)
{
	struct model_token text[TOKENS] = {{30, 0}, {24, 0}, {49, 0}, {5, 0}};
	int32_t expected[TOKENS][ROW], out[2 * TOKENS][ROW];
	struct engram_error err;
	struct chunk c;

	(void)state;
	assert_int_equal(model_compress(24), MODEL_PAD);
	model_hash(text, TOKENS, expected[0]);
	fill(&c, 3, 1);
	use_window(&c);
	c.ids[0] = 5;
	c.window[0][0] = 49;
	c.window[0][1] = -1; /* stands where 24, the pad id, is */
	c.window[0][2] = 30;
	assert_int_equal(engram_cpu_hash(&model_params, &c.batch, out[0], &err),
			 ENGRAM_OK);
	assert_memory_equal(out[0], expected[3], sizeof(out[0]));
}

static void test_zero_tokens(void **state)
{
	struct engram_hash_batch batch = {0};
	struct engram_error err;
	int32_t out = CANARY;

	(void)state;
	assert_int_equal(engram_cpu_hash(&model_params, &batch, &out, &err),
			 ENGRAM_OK);
	assert_int_equal(engram_cpu_write_slots(&model_params, &batch, &err),
			 ENGRAM_OK);
	assert_int_equal(out, CANARY);
}

static void test_all_padding_leaves_the_cache(void **state)
{
	int32_t cache[NUM_SLOTS], before[NUM_SLOTS], out[2 * TOKENS][ROW];
	struct engram_error err;
	struct chunk c;

	(void)state;
	for (int i = 0; i < NUM_SLOTS; i++)
		before[i] = cache[i] = 100 + i;
	fill(&c, 0, TOKENS);
	use_cache(&c, cache);
	memset(c.bounds, 0, sizeof(c.bounds));
	for (int i = 0; i < 2 * TOKENS; i++) {
		c.slots[i] = -1;
		c.ids[i] = i % 2 ? INT32_MIN : INT32_MAX; /* never filled */
		c.positions[i] = i % 2 ? INT64_MIN : INT64_MAX;
	}
	c.dead[1] = 0;
	assert_int_equal(engram_cpu_write_slots(&model_params, &c.batch, &err),
			 ENGRAM_OK);
	assert_int_equal(engram_cpu_hash(&model_params, &c.batch, out[0], &err),
			 ENGRAM_OK);
	assert_memory_equal(cache, before, sizeof(cache));
}

/* Padding behind real requests: the requests' ids are as without it. */
static void test_padding_behind(void **state)
{
	int32_t out[2 * TOKENS][ROW];
	int32_t bounds[6] = {0, TOKENS, TOKENS, TOKENS, TOKENS, TOKENS};
	struct engram_error err;
	struct chunk c;

	(void)state;
	fill(&c, 0, TOKENS);
	c.batch.query_start_loc = bounds;
	c.batch.num_requests = 5;
	for (int i = TOKENS; i < 2 * TOKENS; i++)
		c.ids[i] = -5;
	assert_int_equal(engram_cpu_hash(&model_params, &c.batch, out[0], &err),
			 ENGRAM_OK);
	assert_memory_equal(out, want[0], sizeof(want[0]));
}

/* Empty requests between others own no token. */
static void test_empty_requests(void **state)
{
	int32_t bounds[5] = {0, 0, 1, 1, 2};
	int32_t window[4][3] = {
		{1, 2, 3}, {49, 21, 0}, {999, 999, 999}, {12, 40, 30}};
	uint8_t window_dead[4][3] = {{0}, {0}, {0}, {0, 1, 0}};
	struct chunk c;

	(void)state;
	fill(&c, 3, 1);
	c.batch.query_start_loc = bounds;
	c.batch.num_requests = 4;
	use_window(&c);
	c.batch.lookback_ids = window[0];
	c.batch.lookback_dead = window_dead[0];
	check(&c);
}

static void test_strides(void **state)
{
	int32_t ids[40], bounds[5], window[60], blocks[40];
	int32_t cache[NUM_SLOTS] = {0};
	uint8_t dead[40], window_dead[60];
	int64_t positions[40], slots[40];
	struct engram_error err;
	struct chunk c;

	(void)state;
	memset(ids, 0x7f, sizeof(ids));
	memset(dead, 1, sizeof(dead));
	memset(window, 0x7f, sizeof(window));
	memset(window_dead, 1, sizeof(window_dead));
	memset(positions, 0x7f, sizeof(positions));
	memset(slots, 0x7f, sizeof(slots));
	memset(blocks, 0x7f, sizeof(blocks));
	fill(&c, 2, 2);
	use_window(&c);
	use_cache(&c, cache);
	for (int i = 0; i < 4; i++) {
		ids[i * 3] = c.ids[i];
		dead[20 - i * 5] = c.dead[i]; /* backwards */
		positions[i * 2] = c.positions[i];
		slots[i * 7] = c.slots[i];
	}
	for (int r = 0; r < 3; r++)
		bounds[r * 2] = c.bounds[r];
	for (int r = 0; r < 2; r++)
		for (int k = 0; k < 3; k++) {
			window[r + k * 2] = c.window[r][k]; /* columns first */
			window_dead[50 - r * 20 - k * 3] = c.window_dead[r][k];
			blocks[r * 9 + k * 2] = block_table[r][k];
		}
	c.batch.input_ids = ids;
	c.batch.input_stride = 3;
	c.batch.dead_mask = dead + 20;
	c.batch.dead_stride = -5;
	c.batch.positions = positions;
	c.batch.position_stride = 2;
	c.batch.query_start_loc = bounds;
	c.batch.query_stride = 2;
	c.batch.lookback_ids = window;
	c.batch.lookback_row_stride = 1;
	c.batch.lookback_col_stride = 2;
	c.batch.lookback_dead = window_dead + 50;
	c.batch.lookback_dead_row_stride = -20;
	c.batch.lookback_dead_col_stride = -3;
	c.batch.slot_mapping = slots;
	c.batch.slot_stride = 7;
	c.batch.block_table = blocks;
	c.batch.block_row_stride = 9;
	c.batch.block_col_stride = 2;
	assert_int_equal(engram_cpu_write_slots(&model_params, &c.batch, &err),
			 ENGRAM_OK);
	check(&c);
	/* and from the cache, of which nothing older is known */
	for (int r = 0; r < 2; r++)
		for (int64_t p = 0; p < 2; p++)
			cache[slot_of(r, p)] =
				texts[r][p].dead
					? ENGRAM_DEAD_ID
					: model_compress(texts[r][p].id);
	c.batch.lookback_depth = 0;
	c.batch.lookback_ids = NULL;
	check(&c);
}

/* Tables and blocks that point anywhere are clamped, not followed. */
static void test_cache_clamps(void **state)
{
	int32_t cache[NUM_SLOTS], table[2] = {INT32_MAX, INT32_MIN};
	int32_t out[2][2 * TOKENS][ROW];
	struct engram_error err;
	struct chunk c;

	(void)state;
	for (int i = 0; i < NUM_SLOTS; i++)
		cache[i] = 10 + i;
	fill(&c, 3, 1);
	use_cache(&c, cache);
	c.batch.block_table = table;
	c.batch.num_block_rows = 2;
	c.batch.block_row_stride = 1;
	c.batch.max_blocks = 1;
	assert_int_equal(
		engram_cpu_hash(&model_params, &c.batch, out[0][0], &err),
		ENGRAM_OK);
	/* the same as if the window said so: the last slot, the first slot */
	c.batch.slot_cache = NULL;
	use_window(&c);
	memset(c.window_dead, 0, sizeof(c.window_dead));
	for (int32_t id = 0; id < MODEL_VOCAB; id++)
		for (int k = 0; k < 3; k++) {
			if (model_compress(id) == 10 + NUM_SLOTS - 1)
				c.window[0][k] = id;
			if (model_compress(id) == 10)
				c.window[1][k] = id;
		}
	assert_int_equal(
		engram_cpu_hash(&model_params, &c.batch, out[1][0], &err),
		ENGRAM_OK);
	assert_memory_equal(out[0], out[1], 2 * sizeof(out[0][0]));
}

/* Columns of the larger n-grams alone, ids that are compressed already. */
static void test_min_ngram_and_identity(void **state)
{
	struct engram_hash_params params = model_params;
	const int64_t *primes[2], *offsets[2];
	int32_t out[2 * TOKENS][MODEL_LAYERS][MODEL_COLS - MODEL_HEADS];
	struct engram_error err;
	struct chunk c;

	(void)state;
	for (int layer = 0; layer < MODEL_LAYERS; layer++) {
		primes[layer] = model_params.primes[layer] + MODEL_HEADS;
		offsets[layer] = model_params.offsets[layer] + MODEL_HEADS;
	}
	params.min_ngram = 3;
	params.primes = primes;
	params.offsets = offsets;
	params.token_map = NULL;
	fill(&c, 0, TOKENS);
	for (int i = 0; i < 2 * TOKENS; i++)
		if (!c.dead[i])
			c.ids[i] = model_compress(c.ids[i]);
	assert_int_equal(engram_cpu_hash(&params, &c.batch, out[0][0], &err),
			 ENGRAM_OK);
	for (int i = 0; i < 2 * TOKENS; i++)
		for (int layer = 0; layer < MODEL_LAYERS; layer++)
			assert_memory_equal(
				out[i][layer],
				&want[i / TOKENS][i % TOKENS]
				     [layer * MODEL_COLS + MODEL_HEADS],
				sizeof(out[i][layer]));
}

/* More tokens than the kernel works on at once, in one text. */
static void test_long_text(void **state)
{
	enum { LONG = 1000 };
	static struct model_token text[LONG];
	static int32_t ids[LONG], expected[LONG][ROW], out[LONG][ROW];
	static uint8_t dead[LONG];
	static int64_t positions[LONG];
	int32_t bounds[2] = {0, LONG};
	struct engram_hash_batch batch = {
		.num_tokens = LONG,
		.input_ids = ids,
		.input_stride = 1,
		.dead_mask = dead,
		.dead_stride = 1,
		.positions = positions,
		.position_stride = 1,
		.query_start_loc = bounds,
		.query_stride = 1,
		.num_requests = 1,
	};
	struct engram_error err;

	(void)state;
	for (int i = 0; i < LONG; i++) {
		ids[i] = text[i].id = i * i % MODEL_VOCAB;
		dead[i] = text[i].dead = i % 7 == 3;
		positions[i] = i;
	}
	model_hash(text, LONG, expected[0]);
	assert_int_equal(engram_cpu_hash(&model_params, &batch, out[0], &err),
			 ENGRAM_OK);
	assert_memory_equal(out, expected, sizeof(out));
}

static int set_up(void **state)
{
	(void)state;
	for (int r = 0; r < 2; r++)
		model_hash(texts[r], TOKENS, want[r][0]);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_whole),
		cmocka_unit_test(test_report_31_chunks_with_lookback),
		cmocka_unit_test(test_report_31_chunks_with_slot_cache),
		cmocka_unit_test(test_window_before_cache),
		cmocka_unit_test(test_cuts),
		cmocka_unit_test(test_unknown_is_pad),
		cmocka_unit_test(test_zero_tokens),
		cmocka_unit_test(test_all_padding_leaves_the_cache),
		cmocka_unit_test(test_padding_behind),
		cmocka_unit_test(test_empty_requests),
		cmocka_unit_test(test_strides),
		cmocka_unit_test(test_cache_clamps),
		cmocka_unit_test(test_min_ngram_and_identity),
		cmocka_unit_test(test_long_text),
	};

	return cmocka_run_group_tests(tests, set_up, NULL);
}
