/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every allocation and every system call of open, attach, hash, lookup, call
 * and detach fails in turn: the client reports it, and keeps nothing.
 *
 * The linker puts these functions between our objects and the C library
 * (--wrap); faults hit the test's own thread only, not the fake's.
 */
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "engram.h"
#include "fake.h"

static _Thread_local int countdown; /* fails when it reaches 0; < 0: never */
static _Thread_local bool armed, interrupts;
static _Thread_local const char *failed_call;

/* Is it this call's turn to fail? */
static bool fault(const char *name)
{
	if (!armed || --countdown)
		return false;
	armed = false;
	failed_call = name;
	return true;
}

/* WRAP(type, name, failure, errno, (parameters), (arguments)) for what can not
 * be interrupted, WRAP_EINTR for what can. */
#define WRAP_IF(when, type, name, failure, number, params, args) \
	type __real_##name params;                               \
	type __wrap_##name params;                               \
	type __wrap_##name params                                \
	{                                                        \
		if ((when) && fault(#name)) {                    \
			errno = number;                          \
			return failure;                          \
		}                                                \
		return __real_##name args;                       \
	}
#define WRAP(type, name, failure, number, params, args) \
	WRAP_IF(!interrupts, type, name, failure, number, params, args)
#define WRAP_EINTR(type, name, failure, number, params, args)           \
	WRAP_IF(true, type, name, failure, interrupts ? EINTR : number, \
		params, args)

WRAP(void *, malloc, NULL, ENOMEM, (size_t n), (n))
WRAP(void *, calloc, NULL, ENOMEM, (size_t n, size_t m), (n, m))
WRAP(void *, realloc, NULL, ENOMEM, (void *p, size_t n), (p, n))
WRAP(char *, strndup, NULL, ENOMEM, (const char *s, size_t n), (s, n))
WRAP(void *, mmap, MAP_FAILED, ENOMEM,
     (void *p, size_t n, int prot, int flags, int fd, off_t o),
     (p, n, prot, flags, fd, o))
WRAP(int, fstat, -1, EIO, (int fd, struct stat *st), (fd, st))
WRAP(int, socket, -1, EMFILE, (int d, int t, int p), (d, t, p))
WRAP(int, eventfd, -1, EMFILE, (unsigned int v, int f), (v, f))
WRAP_EINTR(ssize_t, pread, -1, EIO, (int fd, void *p, size_t n, off_t o),
	   (fd, p, n, o))
WRAP_EINTR(int, connect, -1, ECONNREFUSED,
	   (int s, const struct sockaddr *a, socklen_t n), (s, a, n))
WRAP_EINTR(ssize_t, recvmsg, -1, ECONNRESET, (int s, struct msghdr *m, int f),
	   (s, m, f))
WRAP_EINTR(ssize_t, sendmsg, -1, EPIPE, (int s, const struct msghdr *m, int f),
	   (s, m, f))
WRAP_EINTR(int, poll, -1, ENOMEM, (struct pollfd * p, nfds_t n, int t),
	   (p, n, t))

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

	fake_start(&fake, &table, fake_serve);
	countdown = nth;
	interrupts = eintr;
	armed = true;
	status = whole_life(fake.path);
	interrupts = false;
	fake_stop(&fake);
	if (open_descriptors() != descriptors || mappings() != maps)
		fail_msg("%s, call %d: something is left", failed_call, nth);
	if (armed) {
		armed = false;
		assert_int_equal(status, ENGRAM_OK);
		return false;
	}
	if (status && (eintr || !engram_last_error()->message[0]))
		fail_msg("%s, call %d: \"%s\"", failed_call, nth,
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
