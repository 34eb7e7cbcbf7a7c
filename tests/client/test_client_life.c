/* SPDX-License-Identifier: Apache-2.0 */
/* A connection's life: sidecars that come late, answer late, or go; forks;
 * many threads; no descriptors left. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "engram.h"
#include "fake.h"

static struct fake_table table;
static const struct engram_attach_params demo = {.table = "demo"};

static int make_table(void **state)
{
	(void)state;
	fake_table_make(&table, NULL);
	return 0;
}

static int free_table(void **state)
{
	(void)state;
	fake_table_free(&table);
	return 0;
}

static engram_client *open_fake(struct fake *fake, int timeout_ms)
{
	const struct engram_open_params params = {
		.socket = fake->path,
		.name = "test",
		.call_timeout_ms = timeout_ms,
	};
	engram_client *client;

	if (engram_open(&params, &client))
		fail_msg("%s", engram_last_error()->message);
	return client;
}

/* One row of the first layer still reads as it should. */
static void check_readable(engram_table *t)
{
	static const int64_t row = 5;
	struct engram_layer_info layer;
	uint8_t record[FAKE_RECORD];

	assert_int_equal(engram_layer_info(t, 0, &layer), ENGRAM_OK);
	assert_int_equal(engram_read_rows(t, 0, &row, 1, record), ENGRAM_OK);
	assert_int_equal(record[9], fake_byte(layer.layer_id, row, 9));
}

/* ---- connecting ---- */

static void nobody_there(void **state)
{
	struct engram_open_params params = {.socket = "/nonexistent/sock"};
	char longer[200];
	engram_client *client;

	(void)state;
	assert_int_equal(engram_open(&params, &client), ENGRAM_EDISCONNECTED);
	assert_null(client);
	assert_string_equal(engram_last_error()->message,
			    "engramd is not reachable at "
			    "\"/nonexistent/sock\": No such file or directory");
	assert_string_equal(engram_last_error()->fix,
			    "start engramd, or name its socket in "
			    "ENGRAMD_SOCKET");
	assert_string_equal(engram_last_error()->path, "/nonexistent/sock");
	memset(longer, 'x', sizeof(longer) - 1);
	longer[sizeof(longer) - 1] = '\0';
	params.socket = longer;
	assert_int_equal(engram_open(&params, &client), ENGRAM_EINVAL);
	params.connect_wait_ms = -2;
	assert_int_equal(engram_open(&params, &client), ENGRAM_EINVAL);
	assert_string_equal(engram_last_error()->message,
			    "connect_wait_ms: -2, must be -1 or more");
	params.connect_wait_ms = 30;
	params.socket = "/nonexistent/sock";
	assert_int_equal(engram_open(&params, &client), ENGRAM_EDISCONNECTED);
}

static void *open_waiting(void *arg)
{
	const struct engram_open_params params = {
		.socket = ((struct fake *)arg)->path,
		.connect_wait_ms = -1,
	};
	engram_client *client;

	return engram_open(&params, &client) ? NULL : client;
}

static void report_23_sidecar_comes_later(void **state)
{
	struct fake fake;
	pthread_t thread;
	void *client;

	(void)state;
	fake_prepare(&fake, &table, fake_serve);
	assert_int_equal(pthread_create(&thread, NULL, open_waiting, &fake), 0);
	fake_listen(&fake);
	pthread_join(thread, &client);
	assert_non_null(client);
	assert_true(engram_boot_epoch(client) == FAKE_EPOCH);
	assert_string_equal(engram_server_version(client), "0.1.0");
	assert_int_equal(engram_close(client), ENGRAM_OK);
	fake_stop(&fake);
}

/* ---- answers that do not come, or come late ---- */

static void silent(struct fake *fake, int sock)
{
	char line[4096];

	(void)fake;
	while (fake_hear(sock, line))
		;
}

static void no_greeting(void **state)
{
	struct engram_open_params params = {.call_timeout_ms = 30};
	engram_client *client;
	struct fake fake;

	(void)state;
	fake_start(&fake, &table, silent);
	params.socket = fake.path;
	assert_int_equal(engram_open(&params, &client), ENGRAM_ETIMEDOUT);
	assert_string_equal(engram_last_error()->message,
			    "engramd did not greet in time");
	fake_stop(&fake);
}

/* Keeps the first request until the second has come, then answers both. */
static void late(struct fake *fake, int sock)
{
	int fds[FAKE_LAYERS + 1];
	char line[4096], *text;
	json_t *request;
	size_t num_fds;

	fake_greet(sock);
	if (!fake_hear(sock, line) || !fake_hear(sock, line))
		return;
	request = json_loads(line, 0, NULL);
	if (!fake_hear(sock, line))
		return;
	fake_attach_answer(fake, request, &text, fds, &num_fds);
	fake_say_fds(sock, text, strlen(text), fds, num_fds);
	json_decref(request);
	free(text);
	while (num_fds)
		close(fds[--num_fds]);
	request = json_loads(line, 0, NULL);
	fake_answer(sock, json_integer_value(json_object_get(request, "id")),
		    "{\"n\":1}");
	json_decref(request);
	while (fake_serve_one(fake, sock))
		;
}

static void late_answer(void **state)
{
	engram_client *client;
	engram_table *t;
	struct fake fake;
	char *result;

	(void)state;
	fake_start(&fake, &table, late);
	client = open_fake(&fake, 1000);
	assert_int_equal(engram_attach(client, &demo, &t), ENGRAM_ETIMEDOUT);
	assert_string_equal(engram_last_error()->message,
			    "engramd did not answer \"attach\" within 1000 ms");
	/* the answer to this one comes after that of the first */
	assert_int_equal(engram_call(client, "ping", NULL, &result), ENGRAM_OK);
	assert_string_equal(result, "{\"n\":1}");
	engram_free(result);
	/* the lease that nobody wanted any more has been given back */
	assert_int_equal(engram_call(client, "ping", NULL, &result), ENGRAM_OK);
	engram_free(result);
	pthread_mutex_lock(&fake.lock);
	assert_int_equal(fake.leases, 0);
	assert_int_equal(fake.detached, 1);
	pthread_mutex_unlock(&fake.lock);
	engram_close(client);
	fake_stop(&fake);
}

/* ---- the sidecar goes ---- */

static void hang_up_on_second(struct fake *fake, int sock)
{
	char line[4096];

	fake_greet(sock);
	if (fake_serve_one(fake, sock) && fake_serve_one(fake, sock))
		fake_hear(sock, line);
}

static void disconnected(void **state)
{
	engram_client *client;
	struct fake fake;
	engram_table *t;
	char *result;

	(void)state;
	fake_start(&fake, &table, hang_up_on_second);
	client = open_fake(&fake, 0);
	assert_int_equal(engram_attach(client, &demo, &t), ENGRAM_OK);
	assert_int_equal(engram_call(client, "ping", NULL, &result),
			 ENGRAM_EDISCONNECTED);
	assert_string_equal(engram_last_error()->message,
			    "engramd closed the connection");
	fake_stop(&fake);
	/* what is mapped stays */
	check_readable(t);
	assert_int_equal(engram_table_poll(t), FAKE_GENERATION);
	assert_int_equal(engram_detach(t), ENGRAM_OK);
	assert_int_equal(engram_close(client), ENGRAM_OK);
}

static void client_goes_first(void **state)
{
	struct fake fake;
	int i;

	(void)state;
	fake_start(&fake, &table, fake_serve);
	for (i = 0; i < 100; i++)
		engram_close(open_fake(&fake, 0));
	fake_stop(&fake);
}

/* ---- notifications ---- */

static void notify_between(struct fake *fake, int sock)
{
	static const char event[] = "{\"method\":\"event.table\",\"params\":{"
				    "\"n\":1}}\n";
	char line[4096];
	int i;

	fake_greet(sock);
	if (!fake_hear(sock, line) || !fake_hear(sock, line))
		return;
	for (i = 0; i < 1500; i++)
		fake_say(sock, event, sizeof(event) - 1);
	fake_answer(sock, 1, "{}");
	while (fake_serve_one(fake, sock))
		;
}

static void events_are_bounded(void **state)
{
	engram_client *client;
	struct fake fake;
	char *text;
	int i;

	(void)state;
	fake_start(&fake, &table, notify_between);
	client = open_fake(&fake, 0);
	assert_int_equal(engram_call(client, "events.subscribe", NULL, &text),
			 ENGRAM_OK);
	engram_free(text);
	assert_int_equal(engram_next_event(client, 0, &text), ENGRAM_OK);
	assert_string_equal(text, "{\"jsonrpc\":\"2.0\",\"method\":\"event.lost"
				  "\",\"params\":{\"count\":476}}");
	engram_free(text);
	for (i = 0; i < 1024; i++) {
		assert_int_equal(engram_next_event(client, 0, &text),
				 ENGRAM_OK);
		assert_string_equal(text, "{\"method\":\"event.table\","
					  "\"params\":{\"n\":1}}");
		engram_free(text);
	}
	assert_int_equal(engram_next_event(client, 0, &text), ENGRAM_ETIMEDOUT);
	assert_null(text);
	engram_close(client);
	fake_stop(&fake);
}

/* Two events after each request: one thread waits for them, another calls. */
static void notify_after(struct fake *fake, int sock)
{
	static const char event[] = "{\"method\":\"event.x\",\"params\":{}}\n";

	fake_greet(sock);
	while (fake_serve_one(fake, sock)) {
		fake_say(sock, event, sizeof(event) - 1);
		fake_say(sock, event, sizeof(event) - 1);
	}
}

static void *wait_for_events(void *arg)
{
	intptr_t n;
	char *text;

	/* one request is the client's name */
	for (n = 0; n < 2 * 101; n++) {
		if (engram_next_event(arg, -1, &text))
			break;
		engram_free(text);
	}
	return (void *)n;
}

static void events_beside_calls(void **state)
{
	engram_client *client;
	pthread_t thread;
	struct fake fake;
	void *events;
	char *text;
	int i;

	(void)state;
	fake_start(&fake, &table, notify_after);
	client = open_fake(&fake, 0);
	pthread_create(&thread, NULL, wait_for_events, client);
	for (i = 0; i < 100; i++) {
		assert_int_equal(engram_call(client, "ping", NULL, &text),
				 ENGRAM_OK);
		engram_free(text);
	}
	pthread_join(thread, &events);
	assert_int_equal((intptr_t)events, 202);
	engram_close(client);
	fake_stop(&fake);
}

/* To "ping" the answer and two events, all in one message. */
static void answer_and_events(struct fake *fake, int sock)
{
	static const char events[] = "{\"method\":\"event.x\",\"params\":{}}\n"
				     "{\"method\":\"event.y\",\"params\":{}}\n";
	char line[512], said[512];
	const char *id;
	ssize_t n;

	(void)fake;
	fake_greet(sock);
	while ((n = recv(sock, line, sizeof(line) - 1, 0)) > 0) {
		line[n] = '\0';
		id = strstr(line, "\"id\"");
		if (!id)
			continue;
		n = snprintf(
			said, sizeof(said),
			"{\"jsonrpc\":\"2.0\",\"id\":%ld,\"result\":{}}\n%s",
			strtol(strpbrk(id + 4, "0123456789"), NULL, 10),
			strstr(line, "\"ping\"") ? events : "");
		fake_say(sock, said, (size_t)n);
	}
}

static void *wait_for_one(void *client)
{
	char *text;

	if (engram_next_event(client, 10000, &text))
		return NULL;
	engram_free(text);
	return client;
}

/* Events that came in one message with an answer are in the library's
 * buffer: threads that wait at the socket must hear of them, each of one. */
static void events_behind_an_answer(void **state)
{
	engram_client *client;
	pthread_t thread[2];
	struct fake fake;
	void *got;
	char *text;
	int i;

	(void)state;
	fake_start(&fake, &table, answer_and_events);
	client = open_fake(&fake, 0);
	for (i = 0; i < 2; i++)
		pthread_create(&thread[i], NULL, wait_for_one, client);
	usleep(50000); /* most likely they wait by now */
	assert_int_equal(engram_call(client, "ping", NULL, &text), ENGRAM_OK);
	engram_free(text);
	for (i = 0; i < 2; i++) {
		pthread_join(thread[i], &got);
		assert_ptr_equal(got, client);
	}
	engram_close(client);
	fake_stop(&fake);
}

static void bad_params_of_a_call(void **state)
{
	engram_client *client;
	struct fake fake;
	char *text;

	(void)state;
	fake_start(&fake, &table, fake_serve);
	client = open_fake(&fake, 0);
	assert_int_equal(engram_call(client, "ping", "[1]", &text),
			 ENGRAM_EINVAL);
	assert_string_equal(engram_last_error()->message,
			    "params: must be a JSON object");
	assert_int_equal(engram_call(client, "ping", "{", &text),
			 ENGRAM_EINVAL);
	assert_int_equal(engram_call(client, "fail", "{}", &text),
			 ENGRAM_ENOSPACE);
	assert_string_equal(engram_last_error()->message, "no room");
	assert_int_equal(engram_call(client, "\xff", NULL, &text),
			 ENGRAM_EINVAL);
	assert_string_equal(engram_last_error()->message, "method: not UTF-8");
	engram_close(client);
	fake_stop(&fake);
}

/* ---- fork ---- */

static void child_checks(engram_client *client, engram_table *t, int sock)
{
	struct engram_layer_info layer;
	uint8_t record[FAKE_RECORD];
	const int64_t row = 0;
	char *text;

	if (engram_read_rows(t, 0, &row, 1, record) != ENGRAM_EINVAL ||
	    strcmp(engram_last_error()->message, "handle used after fork"))
		_exit(1);
	if (engram_call(client, "ping", NULL, &text) != ENGRAM_EINVAL)
		_exit(2);
	if (engram_layer_info(t, 0, &layer) != ENGRAM_EINVAL ||
	    engram_table_poll(t) != 0 || engram_record_bytes(t) != 0)
		_exit(3);
	if (engram_detach(t) != ENGRAM_EINVAL ||
	    engram_close(client) != ENGRAM_EINVAL)
		_exit(4);
	/* its copy of the socket does not keep the lease alive */
	if (fcntl(sock, F_GETFD) >= 0)
		_exit(5);
	_exit(0);
}

static int client_socket(void)
{
	struct dirent *entry;
	DIR *dir = opendir("/proc/self/fd");
	int fd, found = -1, domain;
	socklen_t len = sizeof(domain);
	char peer[128];

	while ((entry = readdir(dir))) {
		struct sockaddr *addr = (struct sockaddr *)peer;
		socklen_t peer_len = sizeof(peer);

		fd = atoi(entry->d_name);
		/* connected to a name: the client's end */
		if (!getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &len) &&
		    domain == AF_UNIX && !getpeername(fd, addr, &peer_len) &&
		    peer_len > sizeof(sa_family_t) + 1)
			found = fd;
	}
	closedir(dir);
	return found;
}

static void forked_child(void **state)
{
	engram_client *client;
	struct fake fake;
	engram_table *t;
	int status, sock;
	char *text;
	pid_t pid;

	(void)state;
	fake_start(&fake, &table, fake_serve);
	client = open_fake(&fake, 0);
	assert_int_equal(engram_attach(client, &demo, &t), ENGRAM_OK);
	sock = client_socket();
	assert_true(sock >= 0);
	pid = fork();
	if (!pid)
		child_checks(client, t, sock);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
	/* the parent has noticed nothing */
	check_readable(t);
	assert_int_equal(engram_call(client, "ping", NULL, &text), ENGRAM_OK);
	engram_free(text);
	assert_int_equal(engram_detach(t), ENGRAM_OK);
	assert_int_equal(engram_close(client), ENGRAM_OK);
	fake_stop(&fake);
}

/* ---- one descriptor too few ---- */

/* Lower or raise RLIMIT_NOFILE until just `free_fds` descriptors are free. */
static void leave_free(unsigned int free_fds)
{
	struct rlimit limit;
	int fd;

	getrlimit(RLIMIT_NOFILE, &limit);
	for (fd = 0; free_fds; fd++)
		if (fcntl(fd, F_GETFD) < 0)
			free_fds--;
	limit.rlim_cur = (rlim_t)fd;
	if (setrlimit(RLIMIT_NOFILE, &limit))
		_exit(9);
}

static unsigned int free_now(void)
{
	struct rlimit limit;
	unsigned int n = 0;
	int fd;

	getrlimit(RLIMIT_NOFILE, &limit);
	for (fd = 0; fd < (int)limit.rlim_cur; fd++)
		n += fcntl(fd, F_GETFD) < 0;
	return n;
}

static void attach_short(struct fake *fake)
{
	/* the client has two of its own, an attach needs one a layer and one
	 * for the control page */
	const unsigned int own = 2, needed = FAKE_LAYERS + 1;
	engram_client *client;
	engram_table *t;

	client = open_fake(fake, 0);
	leave_free(needed - 1);
	if (engram_attach(client, &demo, &t) != ENGRAM_ESYS ||
	    engram_last_error()->sys_errno != EMFILE ||
	    !strstr(engram_last_error()->message,
		    "no room for the descriptors of the answer"))
		_exit(1);
	if (engram_close(client))
		_exit(2);
	/* nothing is kept of what did fit */
	if (free_now() != needed - 1 + own)
		_exit(3);
	leave_free(needed + own);
	client = open_fake(fake, 0);
	if (engram_attach(client, &demo, &t))
		_exit(4);
	check_readable(t);
	_exit(engram_detach(t) || engram_close(client) ? 5 : 0);
}

/* In a child, since the fake needs descriptors as well. */
static void report_18_short_of_descriptors(void **state)
{
	struct fake fake;
	int status;
	pid_t pid;

	(void)state;
	fake_start(&fake, &table, fake_serve);
	pid = fork();
	if (!pid)
		attach_short(&fake);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
	fake_stop(&fake);
}

/* ---- threads ---- */

#define THREADS 50
#define ROUNDS	20

static void *hash_and_look_up(void *arg)
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
	uint64_t misses = 0;
	engram_table *t = arg;
	int i;

	for (i = 0; i < ROUNDS; i++) {
		if (engram_hash(t, &batch, ids) ||
		    engram_lookup(t, 0, ids, FAKE_LAYERS * FAKE_COLS, 1, 4,
				  rows, &misses) ||
		    misses || engram_table_poll(t) != FAKE_GENERATION)
			return arg;
		/* a thread's failures are its own */
		if (engram_lookup(t, 9, ids, 1, 1, 1, rows, NULL) !=
			    ENGRAM_EINVAL ||
		    engram_last_error()->status != ENGRAM_EINVAL)
			return arg;
	}
	return NULL;
}

static void *attach_and_detach(void *arg)
{
	engram_table *t;
	int i;

	for (i = 0; i < 3; i++)
		if (engram_attach(arg, &demo, &t) || hash_and_look_up(t) ||
		    engram_detach(t))
			return arg;
	return NULL;
}

static void many_threads(void **state)
{
	pthread_t threads[THREADS];
	engram_client *client;
	struct fake fake;
	engram_table *t;
	void *failed;
	int i;

	(void)state;
	fake_start(&fake, &table, fake_serve);
	client = open_fake(&fake, 0);
	assert_int_equal(engram_attach(client, &demo, &t), ENGRAM_OK);
	for (i = 0; i < THREADS; i++)
		assert_int_equal(
			pthread_create(&threads[i], NULL,
				       i % 5 ? hash_and_look_up
					     : attach_and_detach,
				       i % 5 ? (void *)t : (void *)client),
			0);
	for (i = 0; i < THREADS; i++) {
		pthread_join(threads[i], &failed);
		assert_null(failed);
	}
	assert_int_equal(engram_detach(t), ENGRAM_OK);
	assert_int_equal(engram_close(client), ENGRAM_OK);
	fake_stop(&fake);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nobody_there),
		cmocka_unit_test(report_23_sidecar_comes_later),
		cmocka_unit_test(no_greeting),
		cmocka_unit_test(late_answer),
		cmocka_unit_test(disconnected),
		cmocka_unit_test(client_goes_first),
		cmocka_unit_test(events_are_bounded),
		cmocka_unit_test(events_beside_calls),
		cmocka_unit_test(events_behind_an_answer),
		cmocka_unit_test(bad_params_of_a_call),
		cmocka_unit_test(forked_child),
		cmocka_unit_test(report_18_short_of_descriptors),
		cmocka_unit_test(many_threads),
	};

	return cmocka_run_group_tests(tests, make_table, free_table);
}
