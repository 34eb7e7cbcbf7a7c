/* SPDX-License-Identifier: Apache-2.0 */
/* Several threads serve one ring: every batch is served, each row of it once,
 * and those are the rows that it asked for. */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engram_segment.h"
#include "gather_ring.h"

#define CHECK(cond)                                                        \
	do {                                                               \
		if (!(cond)) {                                             \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, \
				#cond);                                    \
			exit(1);                                           \
		}                                                          \
	} while (0)

#define THREADS 3
#define BATCHES 3000u
#define DIM	32u
#define ROWS	100u
#define MOST	300u

static struct engram_error err;
static uint8_t table[ROWS][DIM];
static struct engram_ring client;
static struct gather_ring *server;
static struct gather_binding *binding;
static atomic_bool stop;
static _Atomic uint64_t served, finished, refused;

/* One look at each slot, as thread `index` of THREADS. */
static void serve_once(uint32_t index, bool help)
{
	struct gather_plan plan;
	struct gather_unit unit;

	for (uint32_t slot = 0; slot < 2; slot++) {
		struct gather_served done;

		if (engram_ring_posted(&server->ring, slot) ==
			    server->start[slot] ||
		    !gather_look(server, slot, 64, &plan) ||
		    gather_claim(server, slot, &plan, index, help, &unit) !=
			    GATHER_UNIT)
			continue;
		done = gather_serve(&unit);
		served += done.rows;
		finished += done.finished;
		refused += done.refused;
	}
}

static void *serve(void *arg)
{
	while (!stop) {
		serve_once((uint32_t)(uintptr_t)arg, true);
		sched_yield();
	}
	return NULL;
}

static void bind(void)
{
	struct gather_binding *b = calloc(1, sizeof(*b) + sizeof(b->layers[0]));

	CHECK(b);
	b->generation = 5 + (UINT64_C(1) << 32);
	b->num_layers = 1;
	b->layers[0].layer_id = 14;
	b->layers[0].rows = (struct engram_rows){.codes = table,
						 .code_stride_bytes = DIM,
						 .row_end = ROWS,
						 .dtype = ENGRAM_F8_E4M3,
						 .dim = DIM,
						 .block_size = DIM};
	binding = b;
	atomic_store(&server->bindings[0], b);
}

static int32_t id_of(uint32_t seq, uint32_t i)
{
	return (int32_t)((seq * 31 + i * 7) % (ROWS + 3)) - 1;
}

static void write_ids(uint32_t slot, uint32_t seq, uint32_t begin, uint32_t end)
{
	for (uint32_t i = begin; i < end; i++)
		__atomic_store_n(&engram_ring_ids(&client, slot)[i],
				 ENGRAM_RING_WORD(seq, id_of(seq, i)),
				 __ATOMIC_RELAXED);
}

static void post(uint32_t slot, uint32_t seq, uint32_t rows, uint32_t flag_rows)
{
	const struct engram_ring_post what = {
		.generation = seq % 50 ? 5 : 6,
		.layer_id = 14,
		.num_rows = rows,
		.flag_rows = flag_rows,
		.seq = seq,
	};

	engram_ring_post(&client, slot, &what);
}

static void check_rows(uint32_t slot, uint32_t seq, uint32_t rows)
{
	static const uint8_t zeros[DIM];

	for (uint32_t i = 0; i < rows; i++) {
		int32_t id = id_of(seq, i);

		CHECK(!memcmp(engram_ring_row(&client, slot, i),
			      id >= 0 && id < (int32_t)ROWS ? table[id] : zeros,
			      DIM));
	}
}

static void await_flags(uint32_t slot, uint32_t seq, uint32_t flags)
{
	for (uint32_t i = 0; i < flags; i++) {
		enum engram_ring_result result;

		while (result = engram_ring_look(&client, slot, i, seq),
		       result == ENGRAM_RING_PENDING)
			sched_yield();
		CHECK(result ==
		      (seq % 50 ? ENGRAM_RING_ROWS : ENGRAM_RING_REFUSED));
	}
}

/* Batches of small and of large chunks; one slot is posted to as soon as its
 * flags are raised, before engramd has said that it is finished.  Rows
 * that were refused count nothing. */
static uint64_t run(void)
{
	uint32_t seq[2] = {0};
	uint64_t wanted = 0;

	for (uint32_t n = 0; n < BATCHES; n++) {
		uint32_t slot = n % 2, rows = 1 + n % MOST;
		uint32_t last = engram_ring_next_seq(seq[slot]);
		uint32_t flag_rows = engram_ring_flag_rows(rows, 1 + last % 37);

		seq[slot] = last;
		/* in either order */
		if (n % 3)
			write_ids(slot, last, 0, rows);
		post(slot, last, rows, flag_rows);
		if (n % 3 == 0)
			write_ids(slot, last, 0, rows);
		await_flags(slot, last, (rows - 1) / flag_rows + 1);
		while ((slot || last % 50 == 0) &&
		       !engram_ring_idle(&client, slot, last))
			sched_yield();
		if (last % 50)
			check_rows(slot, last, rows);
		wanted += last % 50 ? rows : 0;
	}
	return wanted;
}

/* A thread that is not there: others take its unit, once they may. */
static void test_absent(uint32_t *seq)
{
	*seq += 1;
	write_ids(0, *seq, 0, 96);
	post(0, *seq, 96, 16);
	for (int i = 0; i < 10; i++)
		serve_once(1, false);
	CHECK(engram_ring_look(&client, 0, 2, *seq) == ENGRAM_RING_ROWS);
	CHECK(engram_ring_look(&client, 0, 0, *seq) == ENGRAM_RING_PENDING);
	CHECK(!engram_ring_idle(&client, 0, *seq));
	for (int i = 0; i < 10; i++)
		serve_once(1, true);
	CHECK(engram_ring_idle(&client, 0, *seq));
	await_flags(0, *seq, 6);
	check_rows(0, *seq, 96);
}

/* Ids that have not come: the unit is left alone, or, if some are missing
 * within it for too long, refused. */
static void test_late_ids(uint32_t *seq)
{
	*seq += 1;
	write_ids(0, *seq, 0, 8);
	post(0, *seq, 96, 48);
	for (int i = 0; i < 10; i++)
		serve_once((uint32_t)i % THREADS, true);
	CHECK(engram_ring_look(&client, 0, 0, *seq) == ENGRAM_RING_PENDING);
	write_ids(0, *seq, 40, 96);
	for (int i = 0; i < 10; i++)
		serve_once((uint32_t)i % THREADS, true);
	CHECK(engram_ring_look(&client, 0, 0, *seq) == ENGRAM_RING_REFUSED);
	CHECK(engram_ring_look(&client, 0, 1, *seq) == ENGRAM_RING_ROWS);
	CHECK(engram_ring_idle(&client, 0, *seq));
	CHECK(refused == 1);
	/* those of a later batch */
	*seq += 1;
	write_ids(0, *seq, 0, 96);
	write_ids(0, *seq + 1, 0, 1);
	post(0, *seq, 96, 48);
	for (int i = 0; i < 10; i++)
		serve_once((uint32_t)i % THREADS, true);
	CHECK(engram_ring_look(&client, 0, 0, *seq) == ENGRAM_RING_REFUSED);
	CHECK(engram_ring_idle(&client, 0, *seq));
	CHECK(refused == 2);
	refused = 0;
}

/* Numbers go round. */
static void test_wrap(void)
{
	uint32_t seq = ENGRAM_RING_SEQ_MAX - 2;

	gather_ring_begin(server, 2);
	post(1, seq, 8, 8);
	gather_ring_begin(server, 3);
	for (int n = 0; n < 6; n++) {
		seq = engram_ring_next_seq(seq);
		write_ids(1, seq, 0, 100);
		post(1, seq, 100, n % 2 ? 16 : 104);
		for (int i = 0; i < 30; i++)
			serve_once((uint32_t)i % THREADS, true);
		CHECK(engram_ring_idle(&client, 1, seq));
		if (seq % 50)
			check_rows(1, seq, 100);
	}
}

int main(void)
{
	const struct engram_ring_shape shape = {2, MOST, DIM};
	pthread_t threads[THREADS];
	uint64_t wanted;
	uint32_t seq;
	int fd;

	for (uint32_t i = 0; i < ROWS; i++)
		memset(table[i], (int)i + 1, DIM);
	server = gather_ring_new(THREADS);
	CHECK(server);
	CHECK(!engram_ring_create(&shape, &client, &fd, &err));
	CHECK(!engram_ring_map(fd, &server->ring, &err));
	close(fd);
	gather_ring_begin(server, 1);
	bind();
	for (uintptr_t i = 0; i < THREADS; i++)
		CHECK(!pthread_create(&threads[i], NULL, serve, (void *)i));
	wanted = run();
	stop = true;
	for (int i = 0; i < THREADS; i++)
		CHECK(!pthread_join(threads[i], NULL));
	if (served != wanted || refused != BATCHES / 50) {
		fprintf(stderr, "served %llu rows of %llu, refused %llu\n",
			(unsigned long long)served, (unsigned long long)wanted,
			(unsigned long long)refused);
		return 1;
	}
	refused = 0;
	seq = engram_ring_posted(&client, 0) / 50 * 50 + 50;
	test_absent(&seq);
	test_late_ids(&seq);
	test_wrap();
	free(binding);
	gather_ring_free(server);
	engram_ring_unmap(&client);
	return 0;
}
