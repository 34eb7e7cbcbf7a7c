/* SPDX-License-Identifier: Apache-2.0 */
/* The pages that hold the rows: which they are, and what may be done to
 * them, above all after an attach that maps them for writing. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "engram.h"
#include "fake.h"

struct setting {
	struct fake_table table;
	struct fake fake;
	engram_client *client;
};

static void start(struct setting *s, const struct fake_twist *twist,
		  fake_handler handler)
{
	struct engram_open_params params = {.name = "test"};

	fake_table_make(&s->table, twist);
	fake_start(&s->fake, &s->table, handler);
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

static void check_permissions(const engram_table *t, const char *permissions)
{
	struct engram_layer_info layer;
	uint32_t i, j;

	for (i = 0; i < FAKE_LAYERS; i++) {
		assert_int_equal(engram_layer_info(t, i, &layer), ENGRAM_OK);
		assert_true(layer.num_mappings > 0);
		for (j = 0; j < layer.num_mappings; j++)
			check_maps(&layer.mapping[j], permissions);
	}
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

	start(&s, &twist, fake_serve);
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

/* ---- writable, until it is protected ---- */

static engram_table *attach_writable(struct setting *s)
{
	const struct engram_attach_params params = {.table = "demo",
						    .writable = 1};
	engram_table *table;

	if (engram_attach(s->client, &params, &table))
		fail_msg("%s", engram_last_error()->message);
	return table;
}

/* The header regions and the control page are mapped too: what is writable
 * is all of the rows, and nothing else. */
static uint64_t writable_bytes(void)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	unsigned long from, to;
	char line[512], shown[8];
	uint64_t bytes = 0;

	assert_non_null(maps);
	while (fgets(line, sizeof(line), maps))
		if (strstr(line, "/dev/shm/engram-fake-") &&
		    sscanf(line, "%lx-%lx %7s", &from, &to, shown) == 3 &&
		    !strcmp(shown, "rw-s"))
			bytes += to - from;
	fclose(maps);
	return bytes;
}

static uint64_t mapping_bytes(const engram_table *t)
{
	struct engram_layer_info layer;
	uint64_t bytes = 0;
	uint32_t i, j;

	for (i = 0; i < FAKE_LAYERS; i++) {
		engram_layer_info(t, i, &layer);
		for (j = 0; j < layer.num_mappings; j++)
			bytes += layer.mapping[j].bytes;
	}
	return bytes;
}

static void check_rows(const engram_table *t)
{
	uint8_t record[FAKE_RECORD];
	struct engram_layer_info layer;
	uint32_t index, i;
	int64_t row;

	for (index = 0; index < FAKE_LAYERS; index++) {
		engram_layer_info(t, index, &layer);
		for (row = 0; row < layer.rows.row_end; row++) {
			engram_read_rows(t, index, &row, 1, record);
			for (i = 0; i < FAKE_RECORD; i++)
				assert_int_equal(
					record[i],
					fake_byte(layer.layer_id, row, i));
		}
	}
}

static void check_writable(uint32_t layout)
{
	const struct fake_twist twist = {.in_shm = 1, .layout = layout};
	struct setting s;
	uint64_t before;
	engram_table *t;

	start(&s, &twist, fake_serve);
	before = writable_bytes();
	t = attach(&s, 0, 1);
	check_permissions(t, "r--s");
	assert_int_equal(engram_protect(t), ENGRAM_OK);
	check_permissions(t, "r--s");
	assert_true(writable_bytes() == before);
	engram_detach(t);

	t = attach_writable(&s);
	check_permissions(t, "rw-s");
	assert_true(writable_bytes() == before + mapping_bytes(t));
	check_rows(t);
	assert_int_equal(engram_protect(t), ENGRAM_OK);
	check_permissions(t, "r--s");
	assert_true(writable_bytes() == before);
	check_rows(t);
	assert_int_equal(engram_protect(t), ENGRAM_OK);
	check_permissions(t, "r--s");
	engram_detach(t);
	pthread_mutex_lock(&s.fake.lock);
	assert_int_equal(s.fake.writable, 1);
	pthread_mutex_unlock(&s.fake.lock);
	stop(&s);
}

static void writable_packed(void **state)
{
	(void)state;
	check_writable(ENGRAM_PACKED);
}

static void writable_split(void **state)
{
	(void)state;
	check_writable(ENGRAM_SPLIT);
}

/* How a child ends that writes to its rows.  It inherits no mapping, so it
 * attaches for itself. */
static int child_writes(struct setting *s, int protect)
{
	const struct engram_open_params open = {.name = "child",
						.socket = s->fake.path};
	const struct engram_attach_params params = {.table = "demo",
						    .writable = 1};
	const struct rlimit no_core = {0};
	struct engram_layer_info layer;
	volatile uint8_t *first;
	engram_table *t;
	int status;
	pid_t pid;

	pid = fork();
	assert_true(pid >= 0);
	if (pid) {
		assert_int_equal(waitpid(pid, &status, 0), pid);
		return status;
	}
	signal(SIGSEGV, SIG_DFL); /* cmocka and sanitizers have theirs */
	setrlimit(RLIMIT_CORE, &no_core);
	if (engram_open(&open, &s->client) ||
	    engram_attach(s->client, &params, &t) ||
	    (protect && engram_protect(t)) || engram_layer_info(t, 0, &layer))
		_exit(2);
	first = layer.mapping[0].address;
	*first = *first; /* a write, of what is there */
	_exit(0);
}

static void write_faults_once_protected(void **state)
{
	const struct fake_twist twist = {.in_shm = 1};
	struct setting s;
	int status;

	(void)state;
	start(&s, &twist, fake_serve);
	status = child_writes(&s, 0);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	status = child_writes(&s, 1);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
	stop(&s);
}

/* Handlers run in threads of their own. */
static void serve_read_only(struct fake *fake, int sock)
{
	int fds[FAKE_LAYERS + 1];
	char line[4096], *text;
	json_t *request;
	size_t num_fds;

	fake_greet(sock);
	while (fake_hear(sock, line)) {
		if (!strstr(line, "\"attach\""))
			continue;
		request = json_loads(line, 0, NULL);
		json_object_del(json_object_get(request, "params"), "writable");
		fake_attach_answer(fake, request, &text, fds, &num_fds);
		fake_say_fds(sock, text, strlen(text), fds, num_fds);
		free(text);
		json_decref(request);
		while (num_fds)
			close(fds[--num_fds]);
	}
}

static void descriptors_that_can_not_write(void **state)
{
	const struct engram_attach_params params = {.table = "demo",
						    .writable = 1};
	const struct fake_twist twist = {.in_shm = 1};
	struct setting s;
	engram_table *t;

	(void)state;
	start(&s, &twist, serve_read_only);
	assert_int_equal(engram_attach(s.client, &params, &t),
			 ENGRAM_EPROTOCOL);
	assert_null(t);
	assert_string_equal(engram_last_error()->message,
			    "table \"demo\": layer 7: the answer to attach: a "
			    "descriptor of it can not write");
	stop(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(packed),
		cmocka_unit_test(split),
		cmocka_unit_test(writable_packed),
		cmocka_unit_test(writable_split),
		cmocka_unit_test(write_faults_once_protected),
		cmocka_unit_test(descriptors_that_can_not_write),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
