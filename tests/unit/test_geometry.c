/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "engram_geometry.h"

static const int32_t released_ids[] = {1, 14};
static const struct engram_geometry_config released = {
	.num_layers = 2,
	.layer_ids = released_ids,
	.max_ngram = 4,
	.num_heads = 8,
	.vocab_size = 16000000,
	.compressed_vocab_size = 99092,
};

static void test_released_model(void **state)
{
	struct engram_geometry *g;
	struct engram_error err;

	(void)state;
	assert_int_equal(engram_geometry_derive(&released, &g, &err), 0);
	assert_int_equal(g->num_cols, 24);
	assert_int_equal(g->rows[0], 384006168);
	assert_int_equal(g->rows[1], 384016682);
	assert_int_equal(g->primes[0], 16000057);
	assert_int_equal(g->primes[24], 16000477); /* not used by layer 1 */
	assert_int_equal(g->offsets[24], 0);
	assert_int_equal(g->offsets[47] + g->primes[47], g->rows[1]);
	assert_int_equal(g->multipliers[0], 76632096046245);
	assert_int_equal(g->multipliers[7], 82619226485591);
	engram_geometry_free(g);
	engram_geometry_free(NULL);
}

/* A layer's multipliers depend on its id alone, wherever it stands. */
static void test_layer_id_seeds(void **state)
{
	const int32_t ids[] = {14, 3, 1};
	struct engram_geometry_config config = released;
	struct engram_geometry *g;
	struct engram_error err;

	(void)state;
	config.num_layers = 3;
	config.layer_ids = ids;
	assert_int_equal(engram_geometry_derive(&config, &g, &err), 0);
	assert_int_equal(g->multipliers[0], 67716810739261);
	assert_int_equal(g->multipliers[8], 76632096046245);
	engram_geometry_free(g);
}

static void test_smallest(void **state)
{
	const int32_t ids[] = {0};
	struct engram_geometry_config config = {
		.num_layers = 1,
		.layer_ids = ids,
		.max_ngram = 2,
		.num_heads = 1,
		.vocab_size = 1,
		.compressed_vocab_size = 1,
	};
	struct engram_geometry *g;
	struct engram_error err;

	(void)state;
	assert_int_equal(engram_geometry_derive(&config, &g, &err), 0);
	assert_int_equal(g->primes[0], 2);
	assert_int_equal(g->rows[0], 2);
	engram_geometry_free(g);
}

/* What a model stores, in place of what would be derived. */
static void test_given(void **state)
{
	const int32_t ids[] = {2, 0};
	const int64_t primes[] = {10, 4, INT32_MAX - 13, 1, 7, 7};
	const int64_t multipliers[] = {1, INT64_MAX / 9, 3, 4};
	struct engram_geometry_config config = {
		.num_layers = 2,
		.layer_ids = ids,
		.min_ngram = 2,
		.max_ngram = 2,
		.num_heads = 3,
		.compressed_vocab_size = 10,
		.primes = primes,
		.multipliers = multipliers,
	};
	struct engram_geometry *g;
	struct engram_error err;

	(void)state;
	assert_int_equal(engram_geometry_derive(&config, &g, &err), 0);
	assert_int_equal(g->min_ngram, 2);
	assert_int_equal(g->num_cols, 3);
	assert_memory_equal(g->primes, primes, sizeof(primes));
	assert_memory_equal(g->multipliers, multipliers, sizeof(multipliers));
	assert_int_equal(g->offsets[2], 14);
	assert_int_equal(g->offsets[3], 0);
	assert_int_equal(g->offsets[5], 8);
	assert_int_equal(g->rows[0], (int64_t)INT32_MAX + 1);
	assert_int_equal(g->rows[1], 15);
	engram_geometry_free(g);
}

/* Columns of one n-gram size only; multipliers as for any other. */
static void test_min_ngram(void **state)
{
	struct engram_geometry_config config = released;
	struct engram_geometry *g;
	struct engram_error err;

	(void)state;
	config.min_ngram = 4;
	assert_int_equal(engram_geometry_derive(&config, &g, &err), 0);
	assert_int_equal(g->num_cols, 8);
	assert_int_equal(g->primes[0], 16000057);
	assert_int_equal(g->multipliers[0], 76632096046245);
	assert_int_equal(g->multipliers[7], 82619226485591);
	engram_geometry_free(g);
}

static void refuse(const struct engram_geometry_config *config,
		   enum engram_status status, const char *message,
		   const char *fix, const char *path)
{
	struct engram_geometry *g = (void *)1;
	struct engram_error err;

	assert_int_equal(engram_geometry_derive(config, &g, &err), status);
	assert_null(g);
	assert_string_equal(err.message, message);
	assert_string_equal(err.fix, fix);
	assert_string_equal(err.path, path);
	assert_int_equal(engram_geometry_derive(config, &g, NULL), status);
}

static void test_bad_given(void **state)
{
	const int64_t zero[] = {5, 0}, large[] = {5, (int64_t)INT32_MAX + 1};
	const int64_t sum[] = {INT32_MAX, 2};
	const int64_t negative[] = {1, -1}, wraps[] = {1, INT64_MAX / 9 + 1};
	const int32_t ids[] = {2};
	struct engram_geometry_config c = {
		.num_layers = 1,
		.layer_ids = ids,
		.max_ngram = 2,
		.num_heads = 2,
		.compressed_vocab_size = 10,
	};

	(void)state;
	c.primes = zero;
	refuse(&c, ENGRAM_EINVAL, "primes is 0",
	       "give a value from 1 to 2147483647", "primes");
	c.primes = large;
	refuse(&c, ENGRAM_EINVAL, "primes is 2147483648",
	       "give a value from 1 to 2147483647", "primes");
	c.primes = sum;
	refuse(&c, ENGRAM_EGEOMETRY,
	       "layer 2 would have more than 2147483648 rows",
	       "lower vocab_size, num_heads or max_ngram: row numbers are "
	       "int32",
	       "");
	c.primes = NULL;
	c.vocab_size = 5;
	c.multipliers = negative;
	refuse(&c, ENGRAM_EINVAL, "multipliers is -1",
	       "give a value from 1 to 1024819115206086200", "multipliers");
	c.multipliers = wraps;
	refuse(&c, ENGRAM_EINVAL, "multipliers is 1024819115206086201",
	       "give a value from 1 to 1024819115206086200", "multipliers");
}

static void test_bad_config(void **state)
{
	const int32_t twice[] = {3, 3}, negative[] = {3, -1};
	struct engram_geometry_config c = released;

	(void)state;
	c.num_layers = 0;
	refuse(&c, ENGRAM_EINVAL, "num_layers is 0",
	       "give a value from 1 to 64", "num_layers");
	c.num_layers = 65;
	refuse(&c, ENGRAM_EINVAL, "num_layers is 65",
	       "give a value from 1 to 64", "num_layers");
	c = released;
	c.max_ngram = 1;
	refuse(&c, ENGRAM_EINVAL, "max_ngram is 1", "give a value from 2 to 16",
	       "max_ngram");
	c.max_ngram = 17;
	refuse(&c, ENGRAM_EINVAL, "max_ngram is 17",
	       "give a value from 2 to 16", "max_ngram");
	c = released;
	c.num_heads = 0;
	refuse(&c, ENGRAM_EINVAL, "num_heads is 0",
	       "give a value from 1 to 256", "num_heads");
	c.num_heads = 257;
	refuse(&c, ENGRAM_EINVAL, "num_heads is 257",
	       "give a value from 1 to 256", "num_heads");
	c = released;
	c.vocab_size = 0;
	refuse(&c, ENGRAM_EINVAL, "vocab_size is 0",
	       "give a value from 1 to 2147483647", "vocab_size");
	c.vocab_size = UINT32_MAX;
	refuse(&c, ENGRAM_EINVAL, "vocab_size is 4294967295",
	       "give a value from 1 to 2147483647", "vocab_size");
	c = released;
	c.min_ngram = 5;
	refuse(&c, ENGRAM_EINVAL, "min_ngram is 5", "give a value from 1 to 4",
	       "min_ngram");
	c = released;
	c.compressed_vocab_size = 0;
	refuse(&c, ENGRAM_EINVAL, "compressed_vocab_size is 0",
	       "give a value from 1 to 4294967295", "compressed_vocab_size");
	c = released;
	c.layer_ids = twice;
	refuse(&c, ENGRAM_EINVAL, "layer_ids names layer 3 twice",
	       "name each layer once", "layer_ids");
	c.layer_ids = negative;
	refuse(&c, ENGRAM_EINVAL, "layer_ids is -1",
	       "give a value from 0 to 2147483647", "layer_ids");
}

static void test_too_many_rows(void **state)
{
	struct engram_geometry_config c = released;

	(void)state;
	c.vocab_size = 100000000;
	refuse(&c, ENGRAM_EGEOMETRY,
	       "layer 1 would have more than 2147483648 rows",
	       "lower vocab_size, num_heads or max_ngram: row numbers are "
	       "int32",
	       "");
	c.vocab_size = INT32_MAX;
	refuse(&c, ENGRAM_EGEOMETRY,
	       "layer 1 would have more than 2147483648 rows",
	       "lower vocab_size, num_heads or max_ngram: row numbers are "
	       "int32",
	       "");
}

/* What NumPy 1.24 draws: 32-bit draws share an output, large ones reject. */
static void test_numpy_integers(void **state)
{
	const int64_t small[] = {149, 823, 619, 51, 547};
	const int64_t whole[] = {644226611, 3536058432, 2662691893};
	const int64_t large[] = {359694751378967443,  1538764283633127253,
				 155932486627929098,  4429730739593083823,
				 6568070154937853261, 5627591143264223544};
	int64_t got[6];

	(void)state;
	engram_numpy_integers(10007, 1000, 5, got);
	assert_memory_equal(got, small, sizeof(small));
	engram_numpy_integers(10007, UINT64_C(1) << 32, 3, got);
	assert_memory_equal(got, whole, sizeof(whole));
	engram_numpy_integers(10007, UINT64_C(3) << 61, 6, got);
	assert_memory_equal(got, large, sizeof(large));
	engram_numpy_integers(10007, 1, 1, got);
	assert_int_equal(got[0], 0);
}

/* Numbers that fool the test with fewer or other bases, and the ends. */
static void test_primes(void **state)
{
	const uint32_t primes[] = {
		2, 3, 37, 41, 61, 16000057, 2147483647, 4294967291, 4294967279};
	const uint32_t others[] = {0,	       1,	   4,
				   2047,       3277,	   42799,
				   25326001,   3215031751, 4294967295,
				   4294967294, 4292870399, 4294836225};

	(void)state;
	for (size_t i = 0; i < sizeof(primes) / sizeof(primes[0]); i++)
		assert_int_equal(engram_is_prime(primes[i]), 1);
	for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
		assert_int_equal(engram_is_prime(others[i]), 0);
}

static void test_shards_of_24(void **state)
{
	const int good[] = {1, 2, 3, 4, 5, 6, 8, 12, 24};
	int64_t primes[24];
	struct engram_shard shard;
	struct engram_error err;
	size_t at = 0;

	(void)state;
	for (int i = 0; i < 24; i++)
		primes[i] = 100 + i;
	for (uint32_t size = 1; size <= 30; size++) {
		uint32_t head = 0;
		int64_t row = 0;

		if (at == sizeof(good) / sizeof(good[0]) ||
		    size != (uint32_t)good[at]) {
			for (uint32_t rank = 0; rank < size; rank++)
				assert_int_equal(engram_shard_of(primes, 24,
								 rank, size,
								 &shard, &err),
						 ENGRAM_ESHARD);
			continue;
		}
		at++;
		for (uint32_t rank = 0; rank < size; rank++) {
			assert_int_equal(engram_shard_of(primes, 24, rank, size,
							 &shard, &err),
					 ENGRAM_OK);
			assert_int_equal(shard.local_heads,
					 (24 + size - 1) / size);
			assert_int_equal(shard.head_begin, head);
			assert_int_equal(shard.row_begin, row);
			assert_true(shard.head_end > head);
			while (head < shard.head_end)
				row += primes[head++];
			assert_int_equal(shard.row_end, row);
		}
		assert_int_equal(head, 24);
	}
	assert_int_equal(at, sizeof(good) / sizeof(good[0]));
}

static void test_shard_errors(void **state)
{
	const int64_t primes[] = {11, 13, 17, 19, 23};
	struct engram_shard shard;
	struct engram_error err;

	(void)state;
	/* 5 heads over 2 ranks: the last one has real and padded heads */
	assert_int_equal(engram_shard_of(primes, 5, 1, 2, &shard, &err), 0);
	assert_int_equal(shard.head_begin, 3);
	assert_int_equal(shard.head_end, 5);
	assert_int_equal(shard.local_heads, 3);
	assert_int_equal(shard.row_begin, 41);
	assert_int_equal(shard.row_end, 83);

	assert_int_equal(engram_shard_of(primes, 5, 0, 4, &shard, &err),
			 ENGRAM_ESHARD);
	assert_string_equal(err.message, "5 heads over 4 ranks, 2 to each, "
					 "leave the last rank without any");
	assert_string_equal(err.fix,
			    "choose another tensor-parallel size, for example "
			    "one that divides 5");
	assert_int_equal(engram_shard_of(primes, 5, 2, 2, &shard, &err),
			 ENGRAM_EINVAL);
	assert_string_equal(err.message, "tp_rank is 2");
	assert_string_equal(err.fix, "give a value from 0 to 1");
	assert_int_equal(engram_shard_of(primes, 5, 0, 0, &shard, &err),
			 ENGRAM_EINVAL);
	assert_string_equal(err.message, "tp_size is 0");
	assert_int_equal(engram_shard_of(primes, 0, 0, 1, &shard, &err),
			 ENGRAM_EINVAL);
	assert_string_equal(err.message, "num_cols is 0");
	assert_int_equal(
		engram_shard_of(primes, 5, 0, UINT32_MAX, &shard, NULL),
		ENGRAM_ESHARD);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_released_model),
		cmocka_unit_test(test_layer_id_seeds),
		cmocka_unit_test(test_smallest),
		cmocka_unit_test(test_given),
		cmocka_unit_test(test_min_ngram),
		cmocka_unit_test(test_bad_given),
		cmocka_unit_test(test_bad_config),
		cmocka_unit_test(test_too_many_rows),
		cmocka_unit_test(test_numpy_integers),
		cmocka_unit_test(test_primes),
		cmocka_unit_test(test_shards_of_24),
		cmocka_unit_test(test_shard_errors),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
