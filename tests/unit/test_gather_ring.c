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
static struct gather_ring server;
static atomic_bool stop;
static _Atomic uint64_t served, refused;

static void *serve(void *arg)
{
	struct gather_unit unit;
	uint32_t units;

	(void)arg;
	while (!stop)
		for (uint32_t slot = 0; slot < 2; slot++) {
			refused += gather_admit(&server, slot, 64, THREADS,
						&units) == GATHER_REFUSED;
			if (gather_claim(&server, slot, &unit))
				served += gather_serve(&unit);
			else
				sched_yield();
		}
	return NULL;
}

static void bind(void)
{
	struct gather_binding *b = calloc(1, sizeof(*b) + sizeof(b->layers[0]));

	CHECK(b);
	b->generation = 5;
	b->num_layers = 1;
	b->layers[0].layer_id = 14;
	b->layers[0].rows = (struct engram_rows){.codes = table,
						 .code_stride_bytes = DIM,
						 .row_end = ROWS,
						 .dtype = ENGRAM_F8_E4M3,
						 .dim = DIM,
						 .block_size = DIM};
	atomic_store(&server.bindings[0], b);
}

static void post(uint32_t slot, uint32_t seq, uint32_t rows)
{
	const struct engram_ring_post what = {
		.generation = seq % 50 ? 5 : 6,
		.layer_id = 14,
		.num_rows = rows,
		.flag_rows = engram_ring_flag_rows(rows, 1 + seq % 7),
		.seq = seq,
	};

	for (uint32_t i = 0; i < rows; i++)
		engram_ring_ids(&client, slot)[i] =
			(int32_t)((seq * 31 + i * 7) % (ROWS + 3)) - 1;
	engram_ring_post(&client, slot, &what);
}

static void check_row(uint32_t slot, uint32_t i)
{
	static const uint8_t zeros[DIM];
	int32_t id = engram_ring_ids(&client, slot)[i];

	CHECK(!memcmp(engram_ring_row(&client, slot, i),
		      id >= 0 && id < (int32_t)ROWS ? table[id] : zeros, DIM));
}

/* Whole batches, waited for by their last word; rows that were refused count
 * nothing. */
static uint64_t run(void)
{
	uint32_t seq[2] = {0};
	uint64_t wanted = 0;

	for (uint32_t n = 0; n < BATCHES; n++) {
		uint32_t slot = n % 2, rows = 1 + n % MOST;
		uint32_t last = engram_ring_next_seq(seq[slot]);

		post(slot, last, rows);
		seq[slot] = last;
		while (!engram_ring_idle(&client, slot, last))
			sched_yield();
		CHECK(engram_ring_look(&client, slot, 0, last) ==
		      (last % 50 ? ENGRAM_RING_ROWS : ENGRAM_RING_REFUSED));
		for (uint32_t i = 0; last % 50 && i < rows; i++)
			check_row(slot, i);
		wanted += last % 50 ? rows : 0;
	}
	return wanted;
}

int main(void)
{
	const struct engram_ring_shape shape = {2, MOST, DIM};
	pthread_t threads[THREADS];
	uint64_t wanted;
	int fd;

	for (uint32_t i = 0; i < ROWS; i++)
		memset(table[i], (int)i + 1, DIM);
	CHECK(!engram_ring_create(&shape, &client, &fd, &err));
	CHECK(!engram_ring_map(fd, &server.ring, &err));
	close(fd);
	bind();
	for (int i = 0; i < THREADS; i++)
		CHECK(!pthread_create(&threads[i], NULL, serve, NULL));
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
	CHECK(!atomic_load(&server.bindings[0]->batches));
	free(atomic_load(&server.bindings[0]));
	engram_ring_unmap(&client);
	engram_ring_unmap(&server.ring);
	return 0;
}
