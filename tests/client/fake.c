/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "fake.h"
#include "engram_wire.h"

/* A fault of the test itself ends it at once. */
#define CHECK(what)                                                            \
	do {                                                                   \
		if (!(what)) {                                                 \
			fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, \
				#what, strerror(errno));                       \
			abort();                                               \
		}                                                              \
	} while (0)

static void must(enum engram_status status, const struct engram_error *err)
{
	if (status) {
		fprintf(stderr, "%s; %s\n", err->message, err->fix);
		abort();
	}
}

const int32_t fake_layer_ids[FAKE_LAYERS] = {3, 7};

/* ---- the table ---- */

uint8_t fake_byte(int32_t layer_id, int64_t row, uint32_t i)
{
	if (i >= FAKE_DIM)
		return (uint8_t)(118 + (row + i) % 20);
	return (uint8_t)(layer_id * 31 + row * 7 + i * 3);
}

static void fill_rows(struct engram_segment_writer *w, uint64_t rows)
{
	struct engram_segment_header *h = engram_segment_writer_header(w);
	unsigned char *base = engram_segment_writer_base(w);
	struct engram_error err;
	uint64_t row;
	uint32_t i;

	must(engram_segment_reserve(w, h->data_offset, h->data_bytes, &err),
	     &err);
	for (row = 0; row < rows; row++) {
		for (i = 0; i < FAKE_DIM; i++)
			base[h->codes_offset + row * h->code_stride + i] =
				fake_byte(h->layer_id, (int64_t)row, i);
		for (; i < FAKE_RECORD; i++)
			base[h->scales_offset + row * h->scale_stride + i -
			     FAKE_DIM] =
				fake_byte(h->layer_id, (int64_t)row, i);
	}
}

static void make_segment(struct fake_table *t, const struct fake_twist *twist,
			 int index)
{
	struct engram_geometry *g = t->geometry;
	struct engram_segment_source source = {.name = "config.json"};
	struct engram_segment_spec spec = {
		.instance = twist->instance ? twist->instance : "default",
		.table = twist->table ? twist->table : "demo",
		.generation =
			twist->generation ? twist->generation : FAKE_GENERATION,
		.primes = g->primes + index * FAKE_COLS,
		.offsets = g->offsets + index * FAKE_COLS,
		.multipliers = g->multipliers + index * FAKE_MAX_NGRAM,
		.token_map = twist->no_token_map ? NULL : t->token_map,
		.token_map_len = twist->no_token_map ? 0 : FAKE_VOCAB,
		.sources = &source,
		.num_sources = 1,
		.head =
			{
				.layer_id = fake_layer_ids[index] +
					    twist->layer_shift,
				.layer_index = (uint32_t)index,
				.record_layout = twist->layout ? twist->layout
							       : ENGRAM_PACKED,
				.dtype = ENGRAM_F8_E4M3,
				.scale_scheme = ENGRAM_SCALE_UE8M0_BLOCK,
				.dim = FAKE_DIM,
				.block_size = FAKE_BLOCK,
				.tensor_scale = 1,
				.rows = (uint64_t)g->rows[index],
				.min_ngram = 2,
				.max_ngram = FAKE_MAX_NGRAM,
				.num_heads = FAKE_HEADS,
				.num_cols = FAKE_COLS,
				.pad_id =
					FAKE_PAD_ID +
					(index ? (int32_t)twist->pad_shift : 0),
				.raw_pad_id = 2,
				.compressed_vocab_size = 40,
				.prime_seed = 50,
			},
	};
	struct engram_error err;

	must(engram_segment_create(&t->backing, &spec, &t->segments[index],
				   &err),
	     &err);
	fill_rows(t->segments[index], spec.head.rows);
	must(engram_segment_publish(t->segments[index], &err), &err);
}

void fake_table_make(struct fake_table *t, const struct fake_twist *twist)
{
	static const struct fake_twist none;
	const struct engram_geometry_config config = {
		.num_layers = FAKE_LAYERS,
		.layer_ids = fake_layer_ids,
		.max_ngram = FAKE_MAX_NGRAM,
		.num_heads = FAKE_HEADS,
		.vocab_size = 50,
		.compressed_vocab_size = 40,
	};
	struct engram_error err;
	int i;

	memset(t, 0, sizeof(*t));
	t->backing.kind = ENGRAM_BACKING_MEMFD;
	if (twist && twist->in_shm) {
		t->backing.kind = ENGRAM_BACKING_SHM;
		strcpy(t->backing.dir, "/dev/shm/engram-fake-XXXXXX");
		CHECK(mkdtemp(t->backing.dir));
	}
	must(engram_geometry_derive(&config, &t->geometry, &err), &err);
	for (i = 0; i < FAKE_VOCAB; i++)
		t->token_map[i] = (i * 7 + 3) % 40;
	for (i = 0; i < FAKE_LAYERS; i++)
		make_segment(t, twist ? twist : &none, i);
	must(engram_control_own(&t->backing, "default", &t->control, &err),
	     &err);
	t->page = engram_control_owner_page(t->control);
	engram_control_store64(&t->page->boot_epoch, FAKE_EPOCH);
	strcpy(t->page->tables[2].name, "demo");
	engram_control_store32(&t->page->tables[2].state, ENGRAM_TABLE_READY);
	engram_control_store64(&t->page->tables[2].generation, FAKE_GENERATION);
}

void fake_table_free(struct fake_table *t)
{
	int i;

	for (i = 0; i < FAKE_LAYERS; i++)
		engram_segment_discard(t->segments[i]);
	engram_control_disown(t->control, 1);
	if (*t->backing.dir)
		CHECK(!rmdir(t->backing.dir));
	engram_geometry_free(t->geometry);
}

/* ---- the connections ---- */

static void *connection(void *arg)
{
	struct fake *fake = arg;
	pthread_t self = pthread_self();
	unsigned int i;
	int sock;

	pthread_mutex_lock(&fake->lock);
	for (i = 0; !pthread_equal(fake->threads[i], self); i++)
		;
	sock = fake->socks[i];
	pthread_mutex_unlock(&fake->lock);
	fake->handler(fake, sock);
	shutdown(sock, SHUT_RDWR);
	return NULL;
}

static void *accept_all(void *arg)
{
	struct fake *fake = arg;
	unsigned int i;
	int sock;

	for (;;) {
		sock = accept4(fake->listener, NULL, NULL, SOCK_CLOEXEC);
		if (sock < 0)
			return NULL;
		pthread_mutex_lock(&fake->lock);
		if (fake->stop) {
			close(sock);
		} else {
			CHECK(fake->connections < 256);
			i = fake->connections++;
			fake->socks[i] = sock;
			CHECK(!pthread_create(&fake->threads[i], NULL,
					      connection, fake));
		}
		pthread_mutex_unlock(&fake->lock);
	}
}

void fake_prepare(struct fake *fake, struct fake_table *table,
		  fake_handler handler)
{
	memset(fake, 0, sizeof(*fake));
	pthread_mutex_init(&fake->lock, NULL);
	fake->table = table;
	fake->handler = handler;
	fake->next_lease = 40;
	strcpy(fake->dir, "/tmp/engram-fake-XXXXXX");
	CHECK(mkdtemp(fake->dir));
	snprintf(fake->path, sizeof(fake->path), "%s/sock", fake->dir);
	fake->listener = -1;
}

void fake_listen(struct fake *fake)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};

	strcpy(addr.sun_path, fake->path);
	fake->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	CHECK(fake->listener >= 0);
	CHECK(!bind(fake->listener, (struct sockaddr *)&addr, sizeof(addr)));
	CHECK(!listen(fake->listener, 128));
	CHECK(!pthread_create(&fake->acceptor, NULL, accept_all, fake));
}

void fake_start(struct fake *fake, struct fake_table *table,
		fake_handler handler)
{
	fake_prepare(fake, table, handler);
	fake_listen(fake);
}

void fake_stop(struct fake *fake)
{
	unsigned int i;

	pthread_mutex_lock(&fake->lock);
	fake->stop = 1;
	for (i = 0; i < fake->connections; i++)
		shutdown(fake->socks[i], SHUT_RDWR);
	pthread_mutex_unlock(&fake->lock);
	if (fake->listener >= 0) {
		shutdown(fake->listener, SHUT_RDWR);
		pthread_join(fake->acceptor, NULL);
		close(fake->listener);
	}
	for (i = 0; i < fake->connections; i++) {
		pthread_join(fake->threads[i], NULL);
		close(fake->socks[i]);
	}
	unlink(fake->path);
	rmdir(fake->dir);
	pthread_mutex_destroy(&fake->lock);
}

/* ---- what is said ---- */

int fake_say_fds(int sock, const char *text, size_t len, const int *fds,
		 size_t num_fds)
{
	struct pollfd pfd = {.fd = sock, .events = POLLOUT};
	ssize_t n;

	while (len) {
		n = engram_wire_send(sock, text, len, fds, num_fds);
		if (n == -EAGAIN) {
			poll(&pfd, 1, -1);
			continue;
		}
		if (n < 0)
			return 0;
		text += n;
		len -= (size_t)n;
		num_fds = 0;
	}
	return 1;
}

int fake_say(int sock, const char *text, size_t len)
{
	return fake_say_fds(sock, text, len, NULL, 0);
}

void fake_greet(int sock)
{
	char text[512];
	int len = snprintf(
		text, sizeof(text),
		"{\"jsonrpc\":\"2.0\",\"method\":\"hello\",\"params\":{"
		"\"product\":\"engramd\",\"version\":\"0.1.0\",\"protocol\":{"
		"\"major\":1,\"minor\":0},\"capabilities\":[],\"instance\":"
		"\"default\",\"boot_epoch\":\"%016llx\",\"pid\":1,"
		"\"limits\":{}}}\n",
		(unsigned long long)FAKE_EPOCH);

	fake_say(sock, text, (size_t)len);
}

int fake_hear(int sock, char *line)
{
	size_t n = 0;

	while (n < 4095 && recv(sock, line + n, 1, 0) == 1) {
		if (line[n] == '\n') {
			line[n] = '\0';
			return 1;
		}
		n++;
	}
	return 0;
}

void fake_answer(int sock, json_int_t id, const char *result)
{
	char *text;
	int len = asprintf(&text,
			   "{\"jsonrpc\":\"2.0\",\"id\":%lld,\"result\":%s}\n",
			   (long long)id, result);

	CHECK(len > 0);
	fake_say(sock, text, (size_t)len);
	free(text);
}

static void answer_error(int sock, json_int_t id, enum engram_status status,
			 const char *message, const char *path)
{
	char *text;
	int len = asprintf(&text,
			   "{\"jsonrpc\":\"2.0\",\"id\":%lld,\"error\":{"
			   "\"code\":%d,\"message\":\"%s\",\"data\":{"
			   "\"name\":\"%s\",\"fix\":\"do better\",\"path\":"
			   "\"%s\",\"needed\":7,\"available\":3}}}\n",
			   (long long)id, ENGRAM_RPC_CODE(status), message,
			   engram_status_name(status), path);

	CHECK(len > 0);
	fake_say(sock, text, (size_t)len);
	free(text);
}

static json_t *layer_answer(const struct fake *fake, int index, uint32_t rank,
			    uint32_t size, int fd)
{
	struct engram_shard shard;
	struct engram_error err;

	must(engram_shard_of(fake->table->geometry->primes + index * FAKE_COLS,
			     FAKE_COLS, rank, size, &shard, &err),
	     &err);
	return json_pack("{s:i, s:i, s:I, s:I, s:i, s:i, s:i}", "layer_id",
			 fake_layer_ids[index], "fd", fd, "row_begin",
			 (json_int_t)shard.row_begin, "row_end",
			 (json_int_t)shard.row_end, "head_begin",
			 (int)shard.head_begin, "head_end", (int)shard.head_end,
			 "local_heads", (int)shard.local_heads);
}

static int asked_for(const json_t *layers, int32_t layer_id)
{
	const json_t *value;
	size_t i;

	if (!layers)
		return 1;
	json_array_foreach(layers, i, value)
	{
		if (json_integer_value(value) == layer_id)
			return 1;
	}
	return 0;
}

void fake_attach_answer(struct fake *fake, const json_t *request, char **text,
			int fds[FAKE_LAYERS + 1], size_t *num_fds)
{
	const json_t *params = json_object_get(request, "params");
	const int writable = json_is_true(json_object_get(params, "writable"));
	uint32_t rank = (uint32_t)json_integer_value(
		json_object_get(params, "tp_rank"));
	uint32_t size = (uint32_t)json_integer_value(
		json_object_get(params, "tp_size"));
	json_t *layers = json_array(), *answer;
	struct engram_error err;
	char epoch[17], *line;
	int64_t lease;
	int i;

	snprintf(epoch, sizeof(epoch), "%016llx",
		 (unsigned long long)FAKE_EPOCH);
	must(engram_control_reopen(fake->table->control, &fds[0], &err), &err);
	*num_fds = 1;
	/* the wrong way round: clients order them themselves */
	for (i = FAKE_LAYERS - 1; i >= 0; i--) {
		if (!asked_for(json_object_get(params, "layers"),
			       fake_layer_ids[i]))
			continue;
		must((writable ? engram_segment_reopen_writable
			       : engram_segment_reopen)(
			     fake->table->segments[i], &fds[*num_fds], &err),
		     &err);
		json_array_append_new(layers, layer_answer(fake, i, rank, size,
							   (int)*num_fds));
		++*num_fds;
	}
	pthread_mutex_lock(&fake->lock);
	lease = fake->next_lease++;
	fake->leases++;
	fake->writable += writable;
	pthread_mutex_unlock(&fake->lock);
	answer = json_pack("{s:s, s:O, s:{s:I, s:s, s:i, s:s, s:s, s:{s:i}, "
			   "s:o}}",
			   "jsonrpc", "2.0", "id",
			   json_object_get(request, "id"), "result", "lease",
			   (json_int_t)lease, "table", "demo", "generation",
			   FAKE_GENERATION, "boot_epoch", epoch, "content_id",
			   FAKE_CONTENT, "control", "fd", 0, "layers", layers);
	CHECK(answer);
	line = json_dumps(answer, JSON_COMPACT);
	CHECK(line && asprintf(text, "%s\n", line) > 0);
	free(line);
	json_decref(answer);
}

static void serve_attach(struct fake *fake, int sock, const json_t *request,
			 json_int_t id)
{
	const char *table = json_string_value(
		json_object_get(json_object_get(request, "params"), "table"));
	int fds[FAKE_LAYERS + 1];
	size_t num_fds;
	char *text;

	if (!table || strcmp(table, "demo")) {
		answer_error(sock, id, ENGRAM_ENOTFOUND, "no table \\\"x\\\"",
			     "table");
		return;
	}
	fake_attach_answer(fake, request, &text, fds, &num_fds);
	fake_say_fds(sock, text, strlen(text), fds, num_fds);
	free(text);
	while (num_fds)
		close(fds[--num_fds]);
}

int fake_serve_one(struct fake *fake, int sock)
{
	const char *method;
	char line[4096];
	json_t *request;
	json_int_t id;

	if (!fake_hear(sock, line))
		return 0;
	request = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
	CHECK(json_is_object(request));
	method = json_string_value(json_object_get(request, "method"));
	id = json_integer_value(json_object_get(request, "id"));
	CHECK(method);
	if (!strcmp(method, "attach")) {
		serve_attach(fake, sock, request, id);
	} else if (!strcmp(method, "detach")) {
		pthread_mutex_lock(&fake->lock);
		fake->leases--;
		fake->detached++;
		pthread_mutex_unlock(&fake->lock);
		if (id)
			fake_answer(sock, id, "{}");
	} else if (id && !strcmp(method, "fail")) {
		answer_error(sock, id, ENGRAM_ENOSPACE, "no room", "memory");
	} else if (id) {
		fake_answer(sock, id, "{}");
	}
	json_decref(request);
	return 1;
}

void fake_serve(struct fake *fake, int sock)
{
	fake_greet(sock);
	while (fake_serve_one(fake, sock))
		;
}
