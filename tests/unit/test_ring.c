/* SPDX-License-Identifier: Apache-2.0 */
/* The ring: what may be mapped, posts and answers in all their orders, and
 * what a hostile or broken other side can write. */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <time.h>

#include "engram_ring.h"
#include "segment_fixture.h"

static struct engram_error err;
static const struct engram_ring_shape shape = {2, 100, 13};

static uint64_t in_ms(unsigned int ms)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec +
	       ms * 1000000u;
}

static void test_plan(void)
{
	static const struct engram_ring_shape bad[] = {
		{0, 1, 1},
		{ENGRAM_RING_SLOTS + 1, 1, 1},
		{1, 0, 1},
		{1, ENGRAM_RING_ROWS_MAX + 1, 1},
		{1, 1, 0},
		{1, 1, ENGRAM_RING_ROW_MAX + 1},
		{UINT32_MAX, UINT32_MAX, UINT32_MAX}};
	static const struct engram_ring_shape largest = {
		ENGRAM_RING_SLOTS, ENGRAM_RING_ROWS_MAX, ENGRAM_RING_ROW_MAX};
	struct engram_ring r;

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		CHECK(engram_ring_plan(&bad[i], &r, &err) == ENGRAM_EINVAL &&
		      !r.bytes);
	CHECK_OK(engram_ring_plan(&largest, &r, &err));
	CHECK(r.bytes > (uint64_t)1 << 42 && r.bytes < (uint64_t)1 << 43);
	CHECK_OK(engram_ring_plan(&shape, &r, &err));
	CHECK(r.row_stride == 16 && r.rows_bytes >= 107 * 16);
	CHECK(r.rows_offset + 2 * r.rows_bytes == r.bytes);
}

/* Both sides of one ring. */
static void make(struct engram_ring *client, struct engram_ring *server)
{
	int fd;

	CHECK_OK(engram_ring_create(&shape, client, &fd, &err));
	CHECK_OK(engram_ring_map(fd, server, &err));
	close(fd);
	CHECK(server->base != client->base && server->bytes == client->bytes);
	CHECK(server->shape.max_rows == shape.max_rows &&
	      server->rows_offset == client->rows_offset);
	engram_ring_reset(server);
}

static void test_map_refuses(void)
{
	struct engram_ring_header header = {.magic = ENGRAM_RING_MAGIC,
					    .version = ENGRAM_RING_VERSION,
					    .slots = shape.slots,
					    .max_rows = shape.max_rows,
					    .row_bytes = shape.row_bytes};
	const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
	static const struct {
		size_t at;
		uint32_t value;
		enum engram_status status;
	} wrong[] = {
		{0, 0, ENGRAM_EDAMAGED},	 {8, 1, ENGRAM_EVERSION},
		{12, 0, ENGRAM_EINVAL},		 {12, 1, ENGRAM_EDAMAGED},
		{16, UINT32_MAX, ENGRAM_EINVAL}, {20, 99, ENGRAM_EDAMAGED}};
	struct engram_ring r, made;
	char path[] = "/dev/shm/test_ring.XXXXXX";
	int fd;

	CHECK_OK(engram_ring_plan(&shape, &made, &err));
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		struct engram_ring_header bad = header;

		fd = memfd_create("test", MFD_ALLOW_SEALING);
		CHECK(ftruncate(fd, (off_t)made.bytes) == 0);
		memcpy((char *)&bad + wrong[i].at, &wrong[i].value, 4);
		CHECK(pwrite(fd, &bad, sizeof(bad), 0) == sizeof(bad));
		CHECK(engram_ring_map(fd, &r, &err) == ENGRAM_EINVAL);
		CHECK(strstr(err.message, "of fixed size") && err.fix[0]);
		CHECK(fcntl(fd, F_ADD_SEALS, seals) == 0);
		CHECK(engram_ring_map(fd, &r, &err) == wrong[i].status);
		CHECK(!r.base);
		close(fd);
	}
	/* a file that can run out of room, and no file at all */
	fd = mkstemp(path);
	CHECK(fd >= 0 && unlink(path) == 0);
	CHECK(engram_ring_map(fd, &r, &err) == ENGRAM_EINVAL);
	close(fd);
	fd = open("/dev/null", O_RDWR);
	CHECK(engram_ring_map(fd, &r, &err) == ENGRAM_EINVAL);
	close(fd);
	CHECK(engram_ring_map(-1, &r, &err) == ENGRAM_ESYS);
}

static struct engram_ring_post post_of(uint32_t seq)
{
	return (struct engram_ring_post){.generation = 7,
					 .layer_id = 14,
					 .num_rows = 100,
					 .flag_rows = 16,
					 .seq = seq};
}

static void test_batch(void)
{
	struct engram_ring client, server;
	struct engram_ring_post post = post_of(1), got;

	make(&client, &server);
	CHECK(engram_ring_idle(&client, 1, 0));
	engram_ring_ids(&client, 1)[99] = ENGRAM_RING_WORD(1, 4242);
	engram_ring_post(&client, 1, &post);
	CHECK(!engram_ring_idle(&client, 1, 1));
	CHECK(engram_ring_posted(&server, 0) == 0);
	CHECK(engram_ring_posted(&server, 1) == 1);
	CHECK(engram_ring_read_post(&server, 1, &got) == ENGRAM_RING_SOUND);
	CHECK(got.generation == 7 && got.layer_id == 14 &&
	      got.num_rows == 100 && engram_ring_flags(&got) == 7);
	CHECK((uint32_t)engram_ring_ids(&server, 1)[99] == 4242);
	CHECK(engram_ring_id_seq(&server, 1, 99) == 1 &&
	      engram_ring_id_seq(&server, 1, 98) == 0);
	memcpy(engram_ring_row(&server, 1, 99), "thirteen byte", 13);
	CHECK(engram_ring_look(&client, 1, 6, 1) == ENGRAM_RING_PENDING);
	engram_ring_answer(&server, 1, 6, 1, ENGRAM_RING_ROWS);
	CHECK(engram_ring_await(&client, 1, 6, 1, in_ms(60000)) ==
	      ENGRAM_RING_ROWS);
	CHECK(!memcmp(engram_ring_row(&client, 1, 99), "thirteen byte", 13));
	engram_ring_answer(&server, 1, 0, 1, ENGRAM_RING_REFUSED);
	CHECK(engram_ring_look(&client, 1, 0, 1) == ENGRAM_RING_REFUSED);
	/* given up: an answer that is late changes nothing */
	CHECK(engram_ring_await(&client, 1, 3, 1, in_ms(1)) ==
	      ENGRAM_RING_GIVEN_UP);
	engram_ring_answer(&server, 1, 3, 1, ENGRAM_RING_ROWS);
	CHECK(engram_ring_look(&client, 1, 3, 1) == ENGRAM_RING_GIVEN_UP);
	engram_ring_finish(&server, 1, 1);
	CHECK(engram_ring_idle(&client, 1, 1));
	/* a thread that was late to say so */
	engram_ring_finish(&server, 1, 3);
	engram_ring_finish(&server, 1, 2);
	CHECK(engram_ring_idle(&client, 1, 3));
	/* flags of batch 1 are no answer to batch 2, whatever they were */
	post = post_of(2);
	engram_ring_post(&client, 1, &post);
	for (uint32_t i = 0; i < ENGRAM_RING_FLAGS; i++)
		CHECK(engram_ring_look(&client, 1, i, 2) ==
		      ENGRAM_RING_PENDING);
	engram_ring_answer(&server, 1, 3, 2, ENGRAM_RING_ROWS);
	CHECK(engram_ring_look(&client, 1, 3, 2) == ENGRAM_RING_ROWS);
	engram_ring_unmap(&client);
	engram_ring_unmap(&server);
	engram_ring_unmap(&server);
}

/* Another engramd gets the ring in the midst of a batch. */
static void test_restart(void)
{
	struct engram_ring client, server;
	struct engram_ring_post post = post_of(5);

	make(&client, &server);
	engram_ring_post(&client, 0, &post);
	engram_ring_answer(&server, 0, 0, 5, ENGRAM_RING_ROWS);
	engram_ring_reset(&server);
	CHECK(engram_ring_idle(&client, 0, 5));
	CHECK(engram_ring_await(&client, 0, 1, 5, 0) == ENGRAM_RING_GIVEN_UP);
	/* zeros written over all of it: nothing is idle, nothing answered */
	memset(engram_ring_slot(&server, 0), 0,
	       sizeof(struct engram_ring_slot));
	CHECK(!engram_ring_idle(&client, 0, 5));
	CHECK(engram_ring_look(&client, 0, 0, 5) == ENGRAM_RING_PENDING);
	engram_ring_unmap(&client);
	engram_ring_unmap(&server);
}

static void test_sequence(void)
{
	struct engram_ring client, server;
	struct engram_ring_post post = post_of(1);

	CHECK(engram_ring_next_seq(0) == 1);
	CHECK(engram_ring_next_seq(ENGRAM_RING_SEQ_MAX) == 1);
	CHECK(engram_ring_flag_of(ENGRAM_RING_SEQ_MAX, ENGRAM_RING_GIVEN_UP) ==
	      UINT32_MAX);
	/* once around: a flag of the first 1 is none of the second */
	make(&client, &server);
	engram_ring_answer(&server, 0, 200, 1, ENGRAM_RING_ROWS);
	engram_ring_post(&client, 0, &post);
	CHECK(engram_ring_look(&client, 0, 200, 1) == ENGRAM_RING_PENDING);
	engram_ring_unmap(&client);
	engram_ring_unmap(&server);
	CHECK(engram_ring_flag_rows(1, 8) == 8);
	CHECK(engram_ring_flag_rows(8 * 8, 8) == 8);
	CHECK(engram_ring_flag_rows(8 * 8 + 1, 8) == 16);
	CHECK(engram_ring_seq_before(1, 2) && !engram_ring_seq_before(2, 1));
	CHECK(!engram_ring_seq_before(2, 2));
	CHECK(engram_ring_seq_before(ENGRAM_RING_SEQ_MAX, 1));
	CHECK(!engram_ring_seq_before(1, ENGRAM_RING_SEQ_MAX));
}

/* Every value of every field that engramd reads of a post. */
static void test_hostile_posts(void)
{
	static const struct engram_ring_post bad[] = {
		{.num_rows = 0, .flag_rows = 16, .seq = 1},
		{.num_rows = 101, .flag_rows = 16, .seq = 1},
		{.num_rows = UINT32_MAX, .flag_rows = UINT32_MAX, .seq = 1},
		{.num_rows = 100, .flag_rows = 0, .seq = 1},
		{.num_rows = 100, .flag_rows = 1, .seq = 1},
		{.num_rows = 100, .flag_rows = 20, .seq = 1},
		{.num_rows = 100, .flag_rows = 16, .seq = 0},
		{.num_rows = 100, .flag_rows = 16, .seq = UINT32_MAX}};
	struct engram_ring_post got;
	struct engram_ring client, server;

	make(&client, &server);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		engram_ring_post(&client, 0, &bad[i]);
		CHECK(engram_ring_read_post(&server, 0, &got) ==
		      ENGRAM_RING_UNSOUND);
		CHECK(engram_ring_flags(&got) == ENGRAM_RING_FLAGS);
		engram_ring_answer(&server, 0, 255, got.seq,
				   ENGRAM_RING_REFUSED);
		engram_ring_finish(&server, 0, got.seq);
	}
	/* a word of another batch: the rest is still to come */
	for (int i = 0; i < ENGRAM_RING_POST_WORDS; i++) {
		struct engram_ring_post post = post_of(7);
		uint64_t *word = &engram_ring_slot(&client, 0)->post.words[i];

		engram_ring_post(&client, 0, &post);
		CHECK(engram_ring_read_post(&server, 0, &got) ==
		      ENGRAM_RING_SOUND);
		*word = ENGRAM_RING_WORD(6, *word);
		CHECK(engram_ring_read_post(&server, 0, &got) ==
		      ENGRAM_RING_NOT_WHOLE);
	}
	engram_ring_unmap(&client);
	engram_ring_unmap(&server);
}

/* ---- two threads ---- */

#define ROUNDS 20000u

struct pair {
	struct engram_ring client, server;
	atomic_int stop;
};

static void serve_batch(struct engram_ring *ring, uint32_t slot,
			const struct engram_ring_post *post)
{
	for (uint32_t f = 0; f < engram_ring_flags(post); f++) {
		uint32_t end = (f + 1) * post->flag_rows;

		end = end < post->num_rows ? end : post->num_rows;
		for (uint32_t i = f * post->flag_rows; i < end; i++)
			memcpy(engram_ring_row(ring, slot, i),
			       &engram_ring_ids(ring, slot)[i], 4);
		engram_ring_answer(ring, slot, f, post->seq, ENGRAM_RING_ROWS);
	}
	engram_ring_finish(ring, slot, post->seq);
}

static void *server_main(void *arg)
{
	struct pair *p = arg;
	uint32_t seen[2] = {0};
	struct engram_ring_post post;

	while (!p->stop)
		for (uint32_t s = 0; s < 2; s++) {
			if (engram_ring_posted(&p->server, s) == seen[s])
				continue;
			if (engram_ring_read_post(&p->server, s, &post) ==
			    ENGRAM_RING_NOT_WHOLE)
				continue;
			CHECK(post.seq == engram_ring_next_seq(seen[s]));
			seen[s] = post.seq;
			serve_batch(&p->server, s, &post);
		}
	return NULL;
}

static void check_round(struct engram_ring *ring, uint32_t round, uint32_t slot,
			const struct engram_ring_post *post)
{
	for (uint32_t i = 0; i < post->num_rows; i++) {
		int32_t id;

		if (i % post->flag_rows == 0)
			CHECK(engram_ring_await(ring, slot, i / post->flag_rows,
						post->seq, in_ms(60000)) ==
			      ENGRAM_RING_ROWS);
		memcpy(&id, engram_ring_row(ring, slot, i), 4);
		CHECK(id == (int32_t)(round * 1000 + i));
	}
}

static void test_stress(void)
{
	struct pair p = {.stop = 0};
	uint32_t seq[2] = {0};
	pthread_t thread;

	make(&p.client, &p.server);
	CHECK(pthread_create(&thread, NULL, server_main, &p) == 0);
	for (uint32_t round = 0; round < ROUNDS; round++) {
		uint32_t slot = round % 2;
		struct engram_ring_post post = post_of(0);

		while (!engram_ring_idle(&p.client, slot, seq[slot]))
			;
		seq[slot] = post.seq = engram_ring_next_seq(seq[slot]);
		post.num_rows = round % 100 + 1;
		for (uint32_t i = 0; i < post.num_rows; i++)
			engram_ring_ids(&p.client, slot)[i] =
				ENGRAM_RING_WORD(post.seq, round * 1000 + i);
		engram_ring_post(&p.client, slot, &post);
		check_round(&p.client, round, slot, &post);
	}
	p.stop = 1;
	CHECK(pthread_join(thread, NULL) == 0);
	engram_ring_unmap(&p.client);
	engram_ring_unmap(&p.server);
}

int main(void)
{
	test_plan();
	test_map_refuses();
	test_batch();
	test_restart();
	test_sequence();
	test_hostile_posts();
	test_stress();
	return 0;
}
