/* SPDX-License-Identifier: Apache-2.0 */
/* What hash and write_slots refuse, in these words, without writing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "hash_model.h"

#define TOKENS 3
#define CANARY (-77)

struct fixture {
	int32_t ids[TOKENS];
	uint8_t dead[TOKENS];
	int64_t positions[TOKENS], slots[TOKENS];
	int32_t bounds[3], window[2], cache[4], blocks[2];
	uint8_t window_dead[2];
	struct engram_hash_params params;
	struct engram_hash_batch batch;
};

/* Request 0 has two tokens, request 1 has one; all of it is in order. */
static void fill(struct fixture *f)
{
	*f = (struct fixture){
		.ids = {1, 2, 3},
		.positions = {4, 5, 9},
		.slots = {0, 1, -1},
		.bounds = {0, 2, 3},
		.window = {6, 7},
		.cache = {CANARY, CANARY, CANARY, CANARY},
		.params = model_params,
	};
	f->batch = (struct engram_hash_batch){
		.num_tokens = TOKENS,
		.input_ids = f->ids,
		.input_stride = 1,
		.dead_mask = f->dead,
		.dead_stride = 1,
		.positions = f->positions,
		.position_stride = 1,
		.query_start_loc = f->bounds,
		.query_stride = 1,
		.num_requests = 2,
		.lookback_ids = f->window,
		.lookback_row_stride = 1,
		.lookback_dead = f->window_dead,
		.lookback_dead_row_stride = 1,
		.lookback_depth = 1,
		.slot_cache = f->cache,
		.num_slots = 4,
		.slot_mapping = f->slots,
		.slot_stride = 1,
		.block_table = f->blocks,
		.num_block_rows = 2,
		.max_blocks = 1,
		.block_row_stride = 1,
		.block_size = 2,
	};
}

static void check_text(const struct engram_error *err, const char *message,
		       const char *fix, const char *path)
{
	assert_int_equal(err->status, ENGRAM_EINVAL);
	assert_string_equal(err->message, message);
	if (fix)
		assert_string_equal(err->fix, fix);
	assert_string_equal(err->path, path);
}

static void check_untouched(const struct fixture *f)
{
	for (int i = 0; i < 4; i++)
		assert_int_equal(f->cache[i], CANARY);
}

static void refuse_slots(struct fixture *f, const char *message,
			 const char *fix, const char *path)
{
	struct engram_error err;

	assert_int_equal(engram_cpu_write_slots(&f->params, &f->batch, &err),
			 ENGRAM_EINVAL);
	check_text(&err, message, fix, path);
	check_untouched(f);
}

static void refuse(struct fixture *f, const char *message, const char *fix,
		   const char *path)
{
	int32_t out[TOKENS * MODEL_LAYERS * MODEL_COLS];
	struct engram_error err;

	for (size_t i = 0; i < sizeof(out) / 4; i++)
		out[i] = CANARY;
	assert_int_equal(engram_cpu_hash(&f->params, &f->batch, out, &err),
			 ENGRAM_EINVAL);
	check_text(&err, message, fix, path);
	for (size_t i = 0; i < sizeof(out) / 4; i++)
		assert_int_equal(out[i], CANARY);
	assert_int_equal(engram_cpu_hash(&f->params, &f->batch, out, NULL),
			 ENGRAM_EINVAL);
	refuse_slots(f, message, fix, path);
}

static void accept(struct fixture *f)
{
	int32_t out[TOKENS * MODEL_LAYERS * MODEL_COLS];
	struct engram_error err;

	assert_int_equal(engram_cpu_hash(&f->params, &f->batch, out, &err),
			 ENGRAM_OK);
}

static void test_ids(void **state)
{
	static const char fix[] = "use the model's own tokenizer, and mark "
				  "tokens that stand for no text as dead";
	struct fixture f;

	(void)state;
	fill(&f);
	accept(&f);
	f.ids[1] = MODEL_VOCAB;
	refuse(&f, "token 1 (number 1 of request 0): id 50 is outside [0, 50)",
	       fix, "input_ids[1]");
	f.dead[1] = 1; /* a dead token's id means nothing */
	accept(&f);
	f.ids[2] = -1;
	refuse(&f, "token 2 (number 0 of request 1): id -1 is outside [0, 50)",
	       fix, "input_ids[2]");
	f.bounds[2] = 2; /* now nobody's token: padding */
	accept(&f);
	f.batch.dead_mask = NULL;
	refuse(&f, "token 1 (number 1 of request 0): id 50 is outside [0, 50)",
	       fix, "input_ids[1]");
	f.params.token_map = NULL;
	refuse(&f, "token 1 (number 1 of request 0): id 50 is outside [0, 50)",
	       fix, "input_ids[1]");
}

static void test_lookback(void **state)
{
	static const char fix[] =
		"give -1 for what is not known, and mark tokens that stand "
		"for no text as dead";
	struct fixture f;

	(void)state;
	fill(&f);
	f.window[1] = 2000;
	refuse(&f,
	       "request 1, 1 before its first token: id 2000 is outside "
	       "[0, 50)",
	       fix, "lookback_ids[1][0]");
	f.window_dead[1] = 1;
	accept(&f);
	f.window_dead[1] = 0;
	f.positions[2] = 0; /* nothing is before it */
	accept(&f);
	f.positions[2] = 9;
	f.bounds[2] = 2; /* an empty request needs no window */
	accept(&f);
	fill(&f);
	f.batch.lookback_ids = NULL;
	refuse(&f, "lookback_depth: there is no such look-back window",
	       "pass lookback_ids, or a depth of 0", "lookback_depth");
	f.batch.lookback_depth = 0;
	accept(&f);
}

static void test_slots(void **state)
{
	struct fixture f;

	(void)state;
	fill(&f);
	f.slots[2] = 4;
	refuse_slots(&f, "token 2: slot 4 of a cache of 4 slots",
		     "size the slot cache for the whole KV cache, or map the "
		     "token to -1",
		     "slot_mapping[2]");
	accept(&f); /* hash reads no slot mapping */
	f.batch.slot_mapping = NULL;
	refuse_slots(&f, "slot_mapping: a slot cache without a slot mapping",
		     "set slot_mapping, or slot_cache to NULL", "slot_mapping");
	fill(&f);
	f.batch.block_table = NULL;
	refuse(&f, "slot_cache: the block table or the cache has no size",
	       "set block_table, num_slots, num_block_rows, max_blocks and "
	       "block_size, or slot_cache to NULL",
	       "slot_cache");
	fill(&f);
	f.batch.block_size = 0;
	refuse(&f, "slot_cache: the block table or the cache has no size", NULL,
	       "slot_cache");
}

static void test_bounds(void **state)
{
	static const char fix[] =
		"give running totals of the requests' tokens, from 0";
	struct fixture f;

	(void)state;
	fill(&f);
	f.bounds[0] = -1;
	refuse(&f, "query_start_loc[0] is -1, below 0", fix,
	       "query_start_loc[0]");
	fill(&f);
	f.bounds[2] = 1;
	refuse(&f, "query_start_loc[2] is 1, below 2", fix,
	       "query_start_loc[2]");
	fill(&f);
	f.bounds[2] = INT32_MAX; /* a graph's batch may end before its last */
	accept(&f);
	f.batch.num_requests = 0;
	refuse(&f, "num_requests: tokens that belong to no request",
	       "describe each request in query_start_loc", "num_requests");
	f.batch.num_tokens = -1;
	refuse(&f, "num_tokens: negative", "give 0 or more", "num_tokens");
	fill(&f);
	f.batch.positions = NULL;
	refuse(&f, "input_ids, positions, query_start_loc: one of them is NULL",
	       "pass all three", "input_ids, positions, query_start_loc");
}

static void test_params(void **state)
{
	const int64_t bad[MODEL_COLS] = {3, 5, 7, 0, 11, 13, 17, 19, 23};
	const int64_t *primes[] = {model_params.primes[0], bad};
	struct fixture f;

	(void)state;
	fill(&f);
	f.params.primes = primes;
	refuse(&f, "layer 1, column 3: prime 0 is outside [1, 2147483647]",
	       "take the primes from the segment or derive them anew",
	       "primes[1][3]");
	fill(&f);
	f.params.max_ngram = 17;
	refuse(&f, "max_ngram: out of range", "give a value from 1 to 16",
	       "max_ngram");
	fill(&f);
	f.params.min_ngram = 5;
	refuse(&f, "min_ngram: out of range",
	       "give a value from 1 to max_ngram", "min_ngram");
	fill(&f);
	f.params.num_heads = 0;
	refuse(&f, "num_heads: out of range", "give a value from 1 to 65536",
	       "num_heads");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_ids),    cmocka_unit_test(test_lookback),
		cmocka_unit_test(test_slots),  cmocka_unit_test(test_bounds),
		cmocka_unit_test(test_params),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
