/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks of two layers on three drives: each is read once, drives that have
 * work are busy, and memory stays ahead, but not too far. */
#include <pthread.h>

#include "loader_queue.h"
#include "segment_fixture.h"

#define CHUNK 10u
#define AHEAD 3u

static struct engram_error err;

/* Layer 0: files 0 and 1, 40 rows each; layer 1: file 2, 25 rows. */
static struct checkpoint_part parts[2] = {{0, 0, 40}, {1, 0, 40}};
static const struct checkpoint_tensor tensors[2] = {
	{.parts = parts, .num_parts = 2}, {.file = 2}};
static const struct loader_plan plans[2] = {{.rows = 80,
					     .chunk_rows = CHUNK,
					     .num_chunks = 8,
					     .code_bytes = 1,
					     .codes = &tensors[0]},
					    {.rows = 25,
					     .chunk_rows = CHUNK,
					     .num_chunks = 3,
					     .code_bytes = 1,
					     .codes = &tensors[1]}};
static const struct loader_plan *const of[2] = {&plans[0], &plans[1]};

static struct source files[3];

static void make(struct loader_queue *queue, const dev_t devices[3])
{
	const struct sources sources = {.files = files, .count = 3};
	uint32_t i;

	for (i = 0; i < 3; i++) {
		files[i].file = i;
		files[i].device = devices[i];
	}
	CHECK_OK(loader_queue_init(queue, of, 2, &sources, AHEAD, &err));
	CHECK(loader_queue_count(queue) == 11);
}

static bool take(struct loader_queue *queue, uint32_t lane, uint32_t layer,
		 uint64_t number)
{
	struct loader_chunk chunk;

	return loader_queue_take(queue, lane, &chunk) && chunk.layer == layer &&
	       chunk.chunk == number;
}

static void test_lanes(void)
{
	struct loader_queue queue;
	struct loader_chunk none;
	uint64_t i;

	make(&queue, (dev_t[]){7, 8, 9});
	CHECK(queue.num_lanes == 3);
	CHECK(take(&queue, 0, 0, 0) && take(&queue, 1, 0, 4));
	CHECK(take(&queue, 2, 1, 0) && take(&queue, 2, 1, 1));
	/* As many workers as one likes. */
	CHECK(take(&queue, 5, 1, 2) && take(&queue, 4, 0, 5));
	/* The third drive is done: its worker goes where most is left. */
	CHECK(take(&queue, 2, 0, 1) && take(&queue, 2, 0, 2));
	CHECK(take(&queue, 2, 0, 6));
	for (i = 0; i < 2; i++)
		CHECK(loader_queue_take(&queue, 2, &none));
	CHECK(!loader_queue_take(&queue, 0, &none));
	CHECK(!loader_queue_ahead(&queue, &none));
	loader_queue_free(&queue);
}

static void test_one_lane(void)
{
	struct loader_queue queue;
	uint64_t i;

	make(&queue, (dev_t[]){7, 7, 7});
	CHECK(queue.num_lanes == 1);
	for (i = 0; i < 11; i++)
		CHECK(take(&queue, (uint32_t)i, i >= 8, i < 8 ? i : i - 8));
	loader_queue_free(&queue);
}

static void *populate(void *arg)
{
	struct loader_queue *queue = arg;
	struct loader_chunk chunk;
	uintptr_t n = 0;

	while (loader_queue_ahead(queue, &chunk))
		n++;
	return (void *)n;
}

static uint64_t ahead_of(struct loader_queue *queue)
{
	uint64_t n;

	pthread_mutex_lock(&queue->lock);
	n = queue->lanes[0].ahead;
	pthread_mutex_unlock(&queue->lock);
	return n;
}

static void test_ahead(void)
{
	struct loader_queue queue;
	pthread_t id;
	void *n;

	make(&queue, (dev_t[]){7, 7, 7});
	CHECK(!pthread_create(&id, NULL, populate, &queue));
	while (ahead_of(&queue) < AHEAD)
		sched_yield();
	CHECK(take(&queue, 0, 0, 0));
	while (ahead_of(&queue) < AHEAD + 1)
		sched_yield();
	CHECK(ahead_of(&queue) == AHEAD + 1);
	/* It is cancelled. */
	loader_queue_end(&queue);
	CHECK(!pthread_join(id, &n));
	CHECK((uintptr_t)n == AHEAD + 1);
	loader_queue_free(&queue);

	/* What readers have taken already is theirs. */
	make(&queue, (dev_t[]){7, 7, 7});
	CHECK(take(&queue, 0, 0, 0) && take(&queue, 0, 0, 1));
	CHECK(!pthread_create(&id, NULL, populate, &queue));
	while (ahead_of(&queue) < 2 + AHEAD)
		sched_yield();
	loader_queue_end(&queue);
	CHECK(!pthread_join(id, &n));
	CHECK((uintptr_t)n == AHEAD);
	loader_queue_free(&queue);
}

int main(void)
{
	test_lanes();
	test_one_lane();
	test_ahead();
	return 0;
}
