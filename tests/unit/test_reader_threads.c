/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two loads, or two workers of one: a thread opens its ring where another had
 * its own until just before, and nothing else orders the two.  What a build
 * with SANITIZE=thread says of it is the test; a load has no right to fail
 * elsewhere either.
 */
#include <fcntl.h>
#include <pthread.h>

#include "reader.h"
#include "segment_fixture.h"

#define THREADS 8
#define BYTES	4096u

struct turn {
	pthread_t thread;
	struct source source;
	uint8_t buffer[BYTES] __attribute__((aligned(SOURCE_ALIGN)));
};

static struct turn turns[THREADS];
/* Relaxed: whose turn it is must order nothing but time. */
static atomic_uint now;

static void read_once(struct turn *t)
{
	struct reader_request request = {.source = &t->source,
					 .buffer = t->buffer,
					 .bytes = BYTES,
					 .needed = BYTES};
	struct engram_error err = {.status = ENGRAM_OK};
	struct reader *reader;

	CHECK(!reader_uring_open(1, t->buffer, BYTES, &reader));
	CHECK_OK(reader_start(reader, &request, &err));
	while (request.pending)
		CHECK_OK(reader_step(reader, &err));
	CHECK(reader_close(reader));
	CHECK(!memcmp(t->buffer, "\177ELF", 4));
}

static void *take_turn(void *arg)
{
	struct turn *t = arg;

	while (atomic_load_explicit(&now, memory_order_relaxed) != t - turns)
		usleep(1000);
	read_once(t);
	atomic_fetch_add_explicit(&now, 1, memory_order_relaxed);
	return NULL;
}

int main(void)
{
	unsigned int i;

	if (reader_uring_probe()) {
		printf("skipped: the kernel does not let us use io_uring\n");
		return 77;
	}
	for (i = 0; i < THREADS; i++) {
		struct source *s = &turns[i].source;

		s->path = "/proc/self/exe";
		s->align = SOURCE_ALIGN;
		atomic_store(&s->fd, open(s->path, O_RDONLY | O_CLOEXEC));
		CHECK(atomic_load(&s->fd) >= 0);
	}
	for (i = 0; i < THREADS; i++)
		CHECK(!pthread_create(&turns[i].thread, NULL, take_turn,
				      &turns[i]));
	for (i = 0; i < THREADS; i++) {
		CHECK(!pthread_join(turns[i].thread, NULL));
		close(atomic_load(&turns[i].source.fd));
	}
	CHECK(atomic_load(&now) == THREADS);
	return 0;
}
