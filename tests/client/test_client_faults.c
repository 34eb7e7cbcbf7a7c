/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every allocation and every system call of open, attach, hash, lookup, call
 * and detach fails in turn: the client reports it, and keeps nothing.
 *
 * Faults hit the test's own thread only, not the fake's.
 */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "../fault/inject.h"
#include "engram.h"
#include "fake.h"

/* jansson is not ours to wrap, but asks for its memory here. */
static void *json_malloc(size_t n)
{
	return malloc(n);
}

static struct fake_table table;

static unsigned int open_descriptors(void)
{
	DIR *dir = opendir("/proc/self/fd");
	unsigned int n = 0;

	assert_non_null(dir);
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

static unsigned int mappings(void)
{
	FILE *f = fopen("/proc/self/maps", "re");
	unsigned int n = 0;
	char line[512];

	assert_non_null(f);
	while (fgets(line, sizeof(line), f))
		n += strstr(line, "memfd:") != NULL;
	fclose(f);
	return n;
}

static enum engram_status use_table(engram_table *t)
{
	static const int32_t tokens[] = {1, 2, 3, 4}, starts[] = {0, 4};
	static const int64_t positions[] = {0, 1, 2, 3};
	const struct engram_hash_batch batch = {
		.num_tokens = 4,
		.input_ids = tokens,
		.input_stride = 1,
		.positions = positions,
		.position_stride = 1,
		.query_start_loc = starts,
		.query_stride = 1,
		.num_requests = 1,
	};
	int32_t ids[4 * FAKE_LAYERS * FAKE_COLS];
	uint16_t rows[4 * FAKE_COLS * FAKE_DIM];
	enum engram_status status;

	status = engram_hash(t, &batch, ids);
	if (!status)
		status = engram_lookup(t, 0, ids, FAKE_LAYERS * FAKE_COLS, 1, 4,
				       rows, NULL);
	return status;
}

static enum engram_status whole_life(const char *path)
{
	const struct engram_open_params params = {.socket = path,
						  .name = "test"};
	const struct engram_attach_params demo = {.table = "demo"};
	enum engram_status status, detached;
	engram_client *client;
	engram_table *t;
	char *result;

	status = engram_open(&params, &client);
	if (status) {
		assert_null(client);
		return status;
	}
	status = engram_attach(client, &demo, &t);
	if (!status) {
		status = use_table(t);
		if (!status)
			status = engram_call(client, "ping", "{}", &result);
		if (!status)
			engram_free(result);
		/* never fails, whatever does below it */
		detached = engram_detach(t);
		assert_int_equal(detached, ENGRAM_OK);
	} else {
		assert_null(t);
	}
	assert_int_equal(engram_close(client), ENGRAM_OK);
	return status;
}

/* One life whose nth call fails; false when there was no nth call. */
static bool one_fault(int nth, bool eintr)
{
	unsigned int descriptors = open_descriptors(), maps = mappings();
	enum engram_status status;
	struct fake fake;
	bool failed;

	fake_start(&fake, &table, fake_serve);
	inject_arm(&(struct inject_plan){.nth = nth, .interrupt = eintr});
	status = whole_life(fake.path);
	failed = inject_disarm();
	fake_stop(&fake);
	if (open_descriptors() != descriptors || mappings() != maps)
		fail_msg("%s, call %d: something is left", inject_call(), nth);
	if (!failed) {
		assert_int_equal(status, ENGRAM_OK);
		return false;
	}
	if (status && (eintr || !engram_last_error()->message[0]))
		fail_msg("%s, call %d: \"%s\"", inject_call(), nth,
			 engram_last_error()->message);
	return true;
}

static void every_call_fails(void **state)
{
	int nth = 1;

	(void)state;
	while (one_fault(nth, false))
		nth++;
	print_message("%d calls failed in turn\n", nth - 1);
	assert_true(nth > 50);
}

static void every_call_is_interrupted(void **state)
{
	int nth = 1;

	(void)state;
	while (one_fault(nth, true))
		nth++;
	print_message("%d calls were interrupted in turn\n", nth - 1);
	assert_true(nth > 8);
}

static int set_up(void **state)
{
	(void)state;
	json_set_alloc_funcs(json_malloc, free);
	fake_table_make(&table, NULL);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	fake_table_free(&table);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_call_fails),
		cmocka_unit_test(every_call_is_interrupted),
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}
