/* SPDX-License-Identifier: Apache-2.0 */
/* The pages that hold the rows: which they are, and what may be done to
 * them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "engram.h"
#include "fake.h"

struct setting {
	struct fake_table table;
	struct fake fake;
	engram_client *client;
};

static void start(struct setting *s, const struct fake_twist *twist)
{
	struct engram_open_params params = {.name = "test"};

	fake_table_make(&s->table, twist);
	fake_start(&s->fake, &s->table, fake_serve);
	params.socket = s->fake.path;
	assert_int_equal(engram_open(&params, &s->client), ENGRAM_OK);
}

static void stop(struct setting *s)
{
	assert_int_equal(engram_close(s->client), ENGRAM_OK);
	fake_stop(&s->fake);
	fake_table_free(&s->table);
}

static engram_table *attach(struct setting *s, uint32_t rank, uint32_t size)
{
	const struct engram_attach_params params = {
		.table = "demo", .tp_rank = rank, .tp_size = size};
	engram_table *table;

	if (engram_attach(s->client, &params, &table))
		fail_msg("%s", engram_last_error()->message);
	return table;
}

/* Does /proc/self/maps show all of the mapping, with these permissions?  The
 * kernel may show neighbours as one. */
static void check_maps(const struct engram_mapping *m, const char *permissions)
{
	const unsigned long begin = (unsigned long)m->address;
	unsigned long from, to, end = begin + m->bytes, at = begin;
	FILE *maps = fopen("/proc/self/maps", "re");
	char line[512], shown[8];

	assert_non_null(maps);
	while (fgets(line, sizeof(line), maps)) {
		if (sscanf(line, "%lx-%lx %7s", &from, &to, shown) != 3 ||
		    to <= at || from > at || at >= end)
			continue;
		assert_string_equal(shown, permissions);
		at = to;
	}
	fclose(maps);
	assert_true(at >= end);
}

static int inside(const struct engram_mapping *m, const void *first,
		  uint64_t bytes)
{
	const char *begin = m->address;
	const char *at = first;

	return at >= begin && bytes <= m->bytes &&
	       (uint64_t)(at - begin) <= m->bytes - bytes;
}

static void check_layer(const engram_table *t, uint32_t index, int split)
{
	const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	struct engram_layer_info layer;
	uint64_t last;
	uint32_t i;

	assert_int_equal(engram_layer_info(t, index, &layer), ENGRAM_OK);
	assert_int_equal(layer.num_mappings, split ? 2 : 1);
	for (i = 0; i < layer.num_mappings; i++) {
		assert_int_equal((uintptr_t)layer.mapping[i].address % page, 0);
		assert_int_equal(layer.mapping[i].bytes % page, 0);
		assert_true(layer.mapping[i].bytes > 0);
		check_maps(&layer.mapping[i], "r--s");
	}
	last = (uint64_t)(layer.rows.row_end - layer.rows.row_begin - 1);
	assert_true(inside(&layer.mapping[0], layer.rows.codes,
			   last * (uint64_t)layer.rows.code_stride_bytes +
				   FAKE_DIM));
	assert_true(inside(&layer.mapping[split], layer.rows.scales,
			   last * (uint64_t)layer.rows.scale_stride_bytes +
				   FAKE_DIM / FAKE_BLOCK));
}

static void check_layout(uint32_t layout)
{
	const struct fake_twist twist = {.layout = layout};
	struct setting s;
	engram_table *t;
	uint32_t rank;

	start(&s, &twist);
	t = attach(&s, 0, 1);
	check_layer(t, 0, layout == ENGRAM_SPLIT);
	check_layer(t, 1, layout == ENGRAM_SPLIT);
	engram_detach(t);
	for (rank = 0; rank < 3; rank++) {
		t = attach(&s, rank, 3);
		check_layer(t, 0, layout == ENGRAM_SPLIT);
		check_layer(t, 1, layout == ENGRAM_SPLIT);
		engram_detach(t);
	}
	stop(&s);
}

static void packed(void **state)
{
	(void)state;
	check_layout(ENGRAM_PACKED);
}

static void split(void **state)
{
	(void)state;
	check_layout(ENGRAM_SPLIT);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(packed),
		cmocka_unit_test(split),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
