/* SPDX-License-Identifier: Apache-2.0 */
/* Sidecars that break the protocol: each gives the client an error that names
 * what was wrong, and leaves no descriptor and no mapping behind. */
#include <dirent.h>
#include <fcntl.h>
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

static struct fake_table table; /* read by all handlers, changed by none */

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
	/* memfd segments and control pages, ours and the client's */
	while (fgets(line, sizeof(line), f))
		n += strstr(line, "memfd:") != NULL;
	fclose(f);
	return n;
}

/* ---- greetings ---- */

static void say_text(struct fake *fake, int sock)
{
	fake_say(sock, fake->text, fake->text_len);
}

#define HELLO(product, major, version, epoch)                     \
	"{\"method\":\"hello\",\"params\":{\"product\":" product  \
	",\"version\":" version ",\"protocol\":{\"major\":" major \
	",\"minor\":0},\"instance\":\"default\",\"boot_epoch\":" epoch "}}\n"
#define EPOCH "\"6f0c1122334455aa\""

static void greetings(void **state)
{
	static const struct {
		const char *text;
		enum engram_status status;
		const char *message;
	} cases[] = {
		{"", ENGRAM_EDISCONNECTED, "engramd closed the connection"},
		{"{\"method\":\"hel", ENGRAM_EDISCONNECTED,
		 "engramd closed the connection"},
		{"SSH-2.0-OpenSSH_9.2\n", ENGRAM_EPROTOCOL,
		 "engramd broke the control protocol: '[' or '{' expected "
		 "near 'SSH'"},
		{"[]\n", ENGRAM_EPROTOCOL,
		 "engramd broke the control protocol: an answer is not an "
		 "object"},
		{"{}\n", ENGRAM_EPROTOCOL,
		 "engramd broke the control protocol: it did not greet as "
		 "engramd does"},
		{"{\"a\":1,\"a\":1}\n", ENGRAM_EPROTOCOL,
		 "engramd broke the control protocol: duplicate object key "
		 "near '\"a\"'"},
		{HELLO("\"memcached\"", "1", "\"1\"", EPOCH), ENGRAM_EPROTOCOL,
		 "engramd broke the control protocol: it did not greet as "
		 "engramd does"},
		{HELLO("\"engramd\"", "2", "\"1\"", EPOCH), ENGRAM_EVERSION,
		 "engramd speaks control protocol 2, this library speaks 1"},
		{HELLO("\"engramd\"", "\"1\"", "\"1\"", EPOCH),
		 ENGRAM_EPROTOCOL,
		 "engramd broke the control protocol: it did not greet as "
		 "engramd does"},
		{HELLO("\"engramd\"", "1", "\"1\"", "12"), ENGRAM_EPROTOCOL,
		 "engramd broke the control protocol: its greeting is "
		 "incomplete"},
		{HELLO("\"engramd\"", "1",
		       "\"0123456789012345678901234567890123456789\"", EPOCH),
		 ENGRAM_EPROTOCOL,
		 "engramd broke the control protocol: its greeting is "
		 "incomplete"},
		{"{\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{\"code\":-32009,"
		 "\"message\":\"512 connections are open\",\"data\":{\"name\":"
		 "\"Busy\"}}}\n",
		 ENGRAM_EBUSY, "512 connections are open"},
	};
	struct engram_open_params params = {.call_timeout_ms = 20000};
	engram_client *client;
	struct fake fake;
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		fake_prepare(&fake, &table, say_text);
		fake.text = cases[i].text;
		fake.text_len = strlen(cases[i].text);
		fake_listen(&fake);
		params.socket = fake.path;
		assert_int_equal(engram_open(&params, &client),
				 cases[i].status);
		assert_null(client);
		assert_string_equal(engram_last_error()->message,
				    cases[i].message);
		fake_stop(&fake);
	}
}

/* ---- lines ---- */

static void say_endless(struct fake *fake, int sock)
{
	static const char block[65536] = {'x'};

	(void)fake;
	while (fake_say(sock, block, sizeof(block)))
		;
}

static void say_deep(struct fake *fake, int sock)
{
	char text[2001];

	(void)fake;
	memset(text, '[', sizeof(text) - 1);
	text[sizeof(text) - 1] = '\n';
	fake_say(sock, text, sizeof(text));
}

static void lines(void **state)
{
	struct engram_open_params params = {.call_timeout_ms = 20000};
	engram_client *client;
	struct fake fake;

	(void)state;
	fake_start(&fake, &table, say_endless);
	params.socket = fake.path;
	assert_int_equal(engram_open(&params, &client), ENGRAM_EPROTOCOL);
	assert_string_equal(engram_last_error()->message,
			    "engramd sent a line over 1048576 bytes");
	fake_stop(&fake);

	fake_start(&fake, &table, say_deep);
	params.socket = fake.path;
	assert_int_equal(engram_open(&params, &client), ENGRAM_EPROTOCOL);
	assert_string_equal(engram_last_error()->message,
			    "engramd broke the control protocol: an answer is "
			    "nested too deep");
	fake_stop(&fake);
}

/* ---- answers ---- */

/* Hear the client's name and one request, then say the text. */
static void answer_text(struct fake *fake, int sock)
{
	char line[4096];

	fake_greet(sock);
	if (!fake_hear(sock, line) || !fake_hear(sock, line))
		return;
	fake_say(sock, fake->text, fake->text_len);
	while (fake_hear(sock, line))
		;
}

static void answers(void **state)
{
	static const struct {
		const char *text;
		enum engram_status status;
		const char *message;
		int open; /* does the connection survive? */
	} cases[] = {
		{"{\"id\":1}\n", ENGRAM_EPROTOCOL,
		 "engramd broke the control protocol: an answer without a "
		 "result",
		 0},
		{"{\"id\":99,\"result\":{}}\n", ENGRAM_EPROTOCOL,
		 "engramd broke the control protocol: an answer to no request",
		 0},
		{"{\"id\":\"1\",\"result\":{}}\n", ENGRAM_EPROTOCOL,
		 "engramd broke the control protocol: an answer to no request",
		 0},
		{"nonsense\n", ENGRAM_EPROTOCOL,
		 "engramd broke the control protocol: '[' or '{' expected "
		 "near 'nonsense'",
		 0},
		{"{\"id\":1,\"error\":{}}\n", ENGRAM_EPROTOCOL,
		 "the peer broke the control protocol", 1},
		{"{\"id\":1,\"error\":{\"code\":-32601,\"message\":\"no method "
		 "\\\"ping\\\"\"}}\n",
		 ENGRAM_EUNSUPPORTED, "no method \"ping\"", 1},
		{"{\"id\":1,\"error\":{\"code\":-32004,\"message\":\"full\"}}"
		 "\n",
		 ENGRAM_ENOSPACE, "full", 1},
		{"{\"id\":null,\"error\":{\"code\":-32700,\"message\":\"not "
		 "JSON\"}}\n",
		 ENGRAM_EPROTOCOL, "not JSON", 0},
	};
	struct engram_open_params params = {.name = "test"};
	engram_client *client;
	struct fake fake;
	char *result;
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		fake_prepare(&fake, &table, answer_text);
		fake.text = cases[i].text;
		fake.text_len = strlen(cases[i].text);
		fake_listen(&fake);
		params.socket = fake.path;
		assert_int_equal(engram_open(&params, &client), ENGRAM_OK);
		assert_int_equal(engram_call(client, "ping", NULL, &result),
				 cases[i].status);
		assert_null(result);
		assert_string_equal(engram_last_error()->message,
				    cases[i].message);
		if (!cases[i].open) {
			assert_int_equal(
				engram_call(client, "ping", NULL, &result),
				ENGRAM_EDISCONNECTED);
			assert_string_equal(
				engram_last_error()->message,
				"the connection to engramd is closed");
		}
		assert_int_equal(engram_close(client), ENGRAM_OK);
		fake_stop(&fake);
	}
}

/* ---- answers to attach ---- */

enum { PIPES = 1, NO_FDS, SWAPPED_FDS, EXTRA_FDS, EMPTY_FDS };

struct edit {
	const char *from, *to; /* in the text of the answer */
	int fds;
	enum engram_status status;
	const char *message;
};

static const struct edit *edit; /* of the test that runs */

static char *replaced(const char *text, const char *from, const char *to)
{
	const char *at = strstr(text, from);
	char *out;

	if (!at || asprintf(&out, "%.*s%s%s", (int)(at - text), text, to,
			    at + strlen(from)) < 0)
		abort();
	return out;
}

static void say_edited(struct fake *fake, int sock, const json_t *request)
{
	int fds[FAKE_LAYERS + 1 + 20], pipe_fds[2], first;
	size_t num_fds, i;
	char *text, *out;

	fake_attach_answer(fake, request, &text, fds, &num_fds);
	out = edit->from ? replaced(text, edit->from, edit->to) : strdup(text);
	switch (edit->fds) {
	case PIPES:
		if (pipe(pipe_fds))
			abort();
		close(pipe_fds[1]);
		close(fds[1]);
		fds[1] = pipe_fds[0];
		break;
	case NO_FDS:
		while (num_fds)
			close(fds[--num_fds]);
		break;
	case SWAPPED_FDS:
		first = fds[0];
		fds[0] = fds[1];
		fds[1] = first;
		break;
	case EXTRA_FDS:
		for (i = 0; i < 20; i++)
			fds[num_fds++] = dup(fds[0]);
		break;
	case EMPTY_FDS:
		close(fds[1]);
		fds[1] = open("/dev/null", O_RDONLY | O_CLOEXEC);
		break;
	}
	fake_say_fds(sock, out, strlen(out), fds, num_fds);
	while (num_fds)
		close(fds[--num_fds]);
	free(text);
	free(out);
}

static void serve_edited(struct fake *fake, int sock)
{
	char line[4096];
	json_t *request;

	fake_greet(sock);
	if (!fake_hear(sock, line) || !fake_hear(sock, line))
		return;
	request = json_loads(line, 0, NULL);
	say_edited(fake, sock, request);
	json_decref(request);
	while (fake_serve_one(fake, sock))
		;
}

static void check_edit(const struct edit *e, struct fake_table *t)
{
	struct engram_open_params params = {.name = "test"};
	unsigned int maps;
	engram_client *client;
	engram_table *handle;
	struct fake fake;
	char *result;

	edit = e;
	fake_start(&fake, t, serve_edited);
	params.socket = fake.path;
	assert_int_equal(engram_open(&params, &client), ENGRAM_OK);
	maps = mappings();
	assert_int_equal(
		engram_attach(client,
			      &(struct engram_attach_params){.table = "demo"},
			      &handle),
		e->status);
	if (e->status) {
		assert_null(handle);
		assert_string_equal(engram_last_error()->message, e->message);
	} else {
		assert_int_equal(engram_detach(handle), ENGRAM_OK);
	}
	assert_int_equal(mappings(), maps);
	/* the connection is as good as before, and the lease given back */
	assert_int_equal(engram_call(client, "ping", NULL, &result), ENGRAM_OK);
	engram_free(result);
	if (!e->from || strcmp(e->from, "\"lease\"")) {
		pthread_mutex_lock(&fake.lock);
		assert_int_equal(fake.leases, 0);
		pthread_mutex_unlock(&fake.lock);
	}
	assert_int_equal(engram_close(client), ENGRAM_OK);
	fake_stop(&fake);
}

#define ANSWER	"table \"demo\": the answer to attach: "
#define SEGMENT "table \"demo\": layer 7: "

static void attach_answers(void **state)
{
	static const struct edit cases[] = {
		/* more descriptors than named: closed, and no error */
		{.fds = EXTRA_FDS},
		{.fds = NO_FDS,
		 .status = ENGRAM_EPROTOCOL,
		 .message = "table \"demo\": control page: the answer to "
			    "attach: it names a descriptor that did not come "
			    "with it"},
		{"\"fd\":1", "\"fd\":77", 0, ENGRAM_EPROTOCOL,
		 ANSWER "it names a descriptor that did not come with it"},
		{"\"fd\":1", "\"fd\":-1", 0, ENGRAM_EPROTOCOL,
		 ANSWER "\"fd\" is missing or out of range"},
		{"\"fd\":1", "\"fd\":\"1\"", 0, ENGRAM_EPROTOCOL,
		 ANSWER "\"fd\" is missing or out of range"},
		{"\"fd\":2", "\"fd\":1", 0, ENGRAM_EPROTOCOL,
		 ANSWER "it names one descriptor twice"},
		{"\"lease\"", "\"leash\"", 0, ENGRAM_EPROTOCOL,
		 ANSWER "\"lease\" is missing or out of range"},
		{"\"table\":\"demo\"", "\"table\":\"omed\"", 0,
		 ENGRAM_EPROTOCOL, ANSWER "it is about another table"},
		{"\"generation\":5", "\"generation\":6", 0, ENGRAM_EDAMAGED,
		 SEGMENT "the segment is of another generation"},
		{"\"generation\":5", "\"generation\":1e99", 0, ENGRAM_EPROTOCOL,
		 ANSWER "\"generation\" is missing or out of range"},
		{"55aa", "55ab", 0, ENGRAM_EPROTOCOL,
		 ANSWER "its boot epoch is not the greeting's"},
		{"ddeeff", "ddeefg", 0, ENGRAM_EPROTOCOL,
		 ANSWER "\"content_id\" is not 32 hex digits"},
		{"\"layer_id\":3", "\"layer_id\":7", 0, ENGRAM_EPROTOCOL,
		 ANSWER "it has a layer twice"},
		{"\"layer_id\":3", "\"layer_id\":4", 0, ENGRAM_EDAMAGED,
		 "table \"demo\": layer 4: the segment holds another layer"},
		{"\"layers\":[", "\"layers\":[], \"old\":[", 0,
		 ENGRAM_EPROTOCOL, ANSWER "its number of layers is wrong"},
		{"\"head_end\":9", "\"head_end\":8", 0, ENGRAM_EDAMAGED,
		 SEGMENT "its ranges are not those of this rank"},
		{"\"local_heads\":9", "\"local_heads\":10", 0, ENGRAM_EDAMAGED,
		 SEGMENT "its ranges are not those of this rank"},
		{"\"row_begin\":0", "\"row_begin\":1", 0, ENGRAM_EDAMAGED,
		 SEGMENT "its ranges are not those of this rank"},
		{"\"row_begin\":0", "\"row_begin\":-1", 0, ENGRAM_EPROTOCOL,
		 ANSWER "\"row_begin\" is missing or out of range"},
	};
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(cases) / sizeof(*cases); i++)
		check_edit(&cases[i], &table);
}

/* What the segment reader refuses is its own affair; here it only must come
 * back as an error. */
static void attach_descriptors(void **state)
{
	static const int kinds[] = {PIPES, SWAPPED_FDS, EMPTY_FDS};
	struct engram_open_params params = {.name = "test"};
	struct edit e = {0};
	engram_client *client;
	engram_table *handle;
	unsigned int maps;
	struct fake fake;
	size_t i;

	(void)state;
	for (i = 0; i < 3; i++) {
		e.fds = kinds[i];
		edit = &e;
		fake_start(&fake, &table, serve_edited);
		params.socket = fake.path;
		assert_int_equal(engram_open(&params, &client), ENGRAM_OK);
		maps = mappings();
		assert_int_not_equal(
			engram_attach(
				client,
				&(struct engram_attach_params){.table = "demo"},
				&handle),
			ENGRAM_OK);
		print_message("%s\n", engram_last_error()->message);
		assert_null(handle);
		assert_int_equal(mappings(), maps);
		assert_int_equal(engram_close(client), ENGRAM_OK);
		fake_stop(&fake);
	}
}

/* Segments that are whole, but not those of the answer. */
static void attach_segments(void **state)
{
	static const struct {
		struct fake_twist twist;
		const char *message;
	} cases[] = {
		{{.table = "other"},
		 SEGMENT "the segment belongs to another table"},
		{{.instance = "other"},
		 SEGMENT "the segment belongs to another instance"},
		{{.generation = 4},
		 SEGMENT "the segment is of another generation"},
		{{.layer_shift = 1}, SEGMENT "the segment holds another layer"},
		{{.pad_shift = 1},
		 "table \"demo\": layer 3: its geometry differs from that of "
		 "the table's other layers"},
	};
	struct fake_table t;
	struct edit e = {.status = ENGRAM_EDAMAGED};
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		fake_table_make(&t, &cases[i].twist);
		e.message = cases[i].message;
		check_edit(&e, &t);
		fake_table_free(&t);
	}
}

/* ---- bytes ---- */

/* A good answer, one byte at a time. */
static void serve_dribble(struct fake *fake, int sock)
{
	int fds[FAKE_LAYERS + 1];
	char line[4096], *text;
	json_t *request;
	size_t num_fds, i;

	fake_greet(sock);
	if (!fake_hear(sock, line) || !fake_hear(sock, line))
		return;
	request = json_loads(line, 0, NULL);
	fake_attach_answer(fake, request, &text, fds, &num_fds);
	json_decref(request);
	for (i = 0; text[i]; i++)
		fake_say_fds(sock, text + i, 1, fds, i ? 0 : num_fds);
	free(text);
	while (num_fds)
		close(fds[--num_fds]);
	while (fake_serve_one(fake, sock))
		;
}

static void one_byte_at_a_time(void **state)
{
	struct engram_open_params params = {.name = "test"};
	engram_client *client;
	engram_table *handle;
	struct fake fake;

	(void)state;
	fake_start(&fake, &table, serve_dribble);
	params.socket = fake.path;
	assert_int_equal(engram_open(&params, &client), ENGRAM_OK);
	assert_int_equal(
		engram_attach(client,
			      &(struct engram_attach_params){.table = "demo"},
			      &handle),
		ENGRAM_OK);
	assert_int_equal(engram_detach(handle), ENGRAM_OK);
	assert_int_equal(engram_close(client), ENGRAM_OK);
	fake_stop(&fake);
}

static unsigned int seed; /* of the round that runs */

/* Some bytes of the answer changed, doubled or dropped; then hang up. */
static char *mutated(const char *text)
{
	unsigned int random = seed * 2654435761u, changes = random % 4 + 1;
	size_t len = strlen(text), at;
	char *out = malloc(len + 8);

	if (!out)
		abort();
	strcpy(out, text);
	for (; changes; changes--) {
		random = random * 1103515245u + 12345;
		at = (random >> 8) % len;
		switch (random >> 28) {
		case 0:
			memmove(out + at, out + at + 1, len - at);
			len--;
			break;
		case 1:
			memmove(out + at + 1, out + at, len - at + 1);
			len++;
			break;
		case 2:
			out[at] = "0123456789-{}[],:\""[random % 18];
			break;
		default:
			out[at] = (char)(random % 255 + 1);
		}
	}
	return out;
}

static void serve_mutated(struct fake *fake, int sock)
{
	int fds[FAKE_LAYERS + 1];
	char line[4096], *text, *out;
	json_t *request;
	size_t num_fds;

	fake_greet(sock);
	if (!fake_hear(sock, line) || !fake_hear(sock, line))
		return;
	request = json_loads(line, 0, NULL);
	fake_attach_answer(fake, request, &text, fds, &num_fds);
	json_decref(request);
	out = mutated(text);
	fake_say_fds(sock, out, strlen(out), fds, num_fds);
	free(out);
	free(text);
	while (num_fds)
		close(fds[--num_fds]);
}

static void mutations(void **state)
{
	struct engram_open_params params = {.name = "test"};
	unsigned int maps = mappings(), refused = 0;
	engram_client *client;
	engram_table *handle;
	struct fake fake;

	(void)state;
	for (seed = 1; seed <= 200; seed++) {
		fake_start(&fake, &table, serve_mutated);
		params.socket = fake.path;
		assert_int_equal(engram_open(&params, &client), ENGRAM_OK);
		if (engram_attach(
			    client,
			    &(struct engram_attach_params){.table = "demo"},
			    &handle))
			refused++;
		else
			assert_int_equal(engram_detach(handle), ENGRAM_OK);
		assert_int_equal(mappings(), maps);
		assert_int_equal(engram_close(client), ENGRAM_OK);
		fake_stop(&fake);
	}
	/* a few hit what does not matter, such as the id of the lease */
	assert_in_range(refused, 150, 200);
}

static unsigned int descriptors_before;

static int count_before(void **state)
{
	(void)state;
	fake_table_make(&table, NULL);
	descriptors_before = open_descriptors();
	return 0;
}

static int count_after(void **state)
{
	unsigned int now = open_descriptors();

	(void)state;
	fake_table_free(&table);
	return now != descriptors_before;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(greetings),
		cmocka_unit_test(lines),
		cmocka_unit_test(answers),
		cmocka_unit_test(attach_answers),
		cmocka_unit_test(attach_descriptors),
		cmocka_unit_test(attach_segments),
		cmocka_unit_test(one_byte_at_a_time),
		cmocka_unit_test(mutations),
	};

	return cmocka_run_group_tests(tests, count_before, count_after);
}
