/* SPDX-License-Identifier: Apache-2.0 */
/* A handle whose registration failed, one that a fork took along unready, and
 * a slot cache that is only read. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "fake_cuda.h"
#include "setting.h"

static const struct engram_attach_params demo = {.table = "demo"};

/* Whichever call of the registration fails, the rows that were mapped for
 * writing are so no more. */
static void failed_is_read_only(void **state)
{
	const struct engram_cuda_attach_params cuda = {
		.device = -1, .chunk_bytes = 4096, .force_writable = 1};
	struct setting *s = *state;
	struct engram_layer_info layer;
	engram_cuda_table *t;
	char mode[8];

	/* of two layers, the first under way: an address, then the second */
	for (int later = 1; later <= 3; later++) {
		fake_cuda_reset();
		fake_cuda.hold = 1;
		assert_int_equal(
			engram_cuda_attach(s->client, &demo, &cuda, &t),
			ENGRAM_OK);
		fake_cuda_await_held();
		engram_layer_info(engram_cuda_host_table(t), 0, &layer);
		permissions(layer.mapping[0].address, mode);
		assert_string_equal(mode, "rw-s");
		fake_cuda.error = cudaErrorMemoryAllocation;
		fake_cuda.fail_at = fake_cuda.calls + later;
		fake_cuda_release();
		assert_int_equal(engram_cuda_wait(t, -1), ENGRAM_ECUDA);
		permissions(layer.mapping[0].address, mode);
		assert_string_equal(mode, "r--s");
		assert_int_equal(fake_cuda.num_ranges, 0);
		assert_int_equal(engram_cuda_detach(t), ENGRAM_OK);
	}
}

static int child_is_refused(engram_cuda_table *t)
{
	const struct engram_cuda_lookup_params lookup = {0};
	const struct engram_hash_batch batch = {0};
	struct engram_hash_params hash;

	return engram_cuda_table_lookup(t, 0, &lookup, NULL, NULL) ==
		       ENGRAM_EINVAL &&
	       engram_cuda_table_hash(t, &batch, NULL, NULL) == ENGRAM_EINVAL &&
	       engram_cuda_hash_params(t, &hash) == ENGRAM_EINVAL &&
	       !strcmp(engram_last_error()->message, "handle used after fork");
}

/* It would wait for ever for what only its parent has. */
static void forked_before_ready(void **state)
{
	struct setting *s = *state;
	engram_cuda_table *t;
	int status;
	pid_t pid;

	fake_cuda_reset();
	fake_cuda.hold = 1;
	assert_int_equal(engram_cuda_attach(s->client, &demo, NULL, &t),
			 ENGRAM_OK);
	fake_cuda_await_held();
	pid = fork();
	assert_true(pid >= 0);
	if (!pid)
		_exit(child_is_refused(t) ? 0 : 1);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	fake_cuda_release();
	assert_int_equal(engram_cuda_wait(t, -1), ENGRAM_OK);
	assert_int_equal(engram_cuda_detach(t), ENGRAM_OK);
}

/* Without a slot mapping it is read, as engram_hash does, and not written. */
static void cache_without_mapping(void **state)
{
	const int32_t ids[2] = {3, 7}, starts[2] = {0, 2}, blocks[1] = {0};
	const int64_t positions[2] = {2, 3};
	int32_t cache[4] = {5, 6, -1, -1};
	const int32_t before[4] = {5, 6, -1, -1};
	const struct engram_hash_batch batch = {
		.num_tokens = 2,
		.input_ids = ids,
		.input_stride = 1,
		.positions = positions,
		.position_stride = 1,
		.query_start_loc = starts,
		.query_stride = 1,
		.num_requests = 1,
		.slot_cache = cache,
		.num_slots = 4,
		.block_table = blocks,
		.num_block_rows = 1,
		.max_blocks = 1,
		.block_size = 4,
	};
	int32_t want[2 * FAKE_LAYERS * FAKE_COLS];
	int32_t got[2 * FAKE_LAYERS * FAKE_COLS];
	engram_cuda_table *t;

	fake_cuda_reset();
	t = setting_attach(*state, 0, 1, NULL);
	assert_int_equal(engram_hash(engram_cuda_host_table(t), &batch, want),
			 ENGRAM_OK);
	if (engram_cuda_table_hash(t, &batch, got, NULL))
		fail_msg("hash: %s", engram_last_error()->message);
	assert_memory_equal(got, want, sizeof(want));
	assert_memory_equal(cache, before, sizeof(cache));
	assert_int_equal(engram_cuda_detach(t), ENGRAM_OK);
}

/* Not even asked to wait: that would spoil the capture. */
static void counters_while_capturing(void **state)
{
	struct engram_cuda_counters counters;
	engram_cuda_table *t;

	fake_cuda_reset();
	t = setting_attach(*state, 0, 1, NULL);
	fake_cuda.capturing = 1;
	assert_int_equal(engram_cuda_counters(t, NULL, &counters),
			 ENGRAM_EINVAL);
	assert_string_equal(engram_last_error()->message,
			    "stream: it is being captured");
	fake_cuda.capturing = 0;
	assert_int_equal(engram_cuda_counters(t, NULL, &counters), ENGRAM_OK);
	assert_int_equal(engram_cuda_detach(t), ENGRAM_OK);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define TEST(name) \
	cmocka_unit_test_setup_teardown(name, setting_make, setting_free)
		TEST(failed_is_read_only),
		TEST(forked_before_ready),
		TEST(cache_without_mapping),
		TEST(counters_while_capturing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
