/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What one byte of a table costs in memory, by threads: memcpy, packing with
 * its checksum, and reading back with its checksum.  One JSON object a line.
 * The source of every block is one that has just been in use, as bounce
 * buffers are; the destination is GiBs and faulted in before.
 *
 *	memory_probe [GiB [threads...]]
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "engram_kernels.h"
#include "pack.h"
#include "segment.h"

#define ROWS	    4096u /* a block: 1 MiB of codes */
#define CODES	    256u
#define SCALES	    8u
#define RECORD	    (CODES + SCALES)
#define BLOCK	    ((size_t)ROWS * RECORD)
#define BOUNCE	    8u /* blocks in the ring of a thread */
#define THREADS_MAX 256u
#define REPEAT	    3

enum work { COPY, PACK_PACKED, PACK_SPLIT, CHECK_PACKED, CHECK_SPLIT, WORKS };

static const char *const names[WORKS] = {"memcpy", "pack", "pack_split",
					 "checksum", "checksum_split"};

struct thread {
	pthread_t id;
	enum work work;
	uint8_t *base, *bounce;
	uint64_t blocks;
	struct engram_segment_header header;
	pthread_barrier_t *start;
	struct timespec began, ended;
	uint64_t sum; /* so that nothing is left out */
};

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static void *map(uint64_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		die("mmap");
	madvise(p, bytes, MADV_HUGEPAGE);
	memset(p, 1, bytes);
	return p;
}

static void place(struct thread *t, enum engram_record_layout layout)
{
	struct engram_segment_header *h = &t->header;

	*h = (struct engram_segment_header){
		.record_layout = layout,
		.dtype = ENGRAM_F8_E4M3,
		.scale_scheme = ENGRAM_SCALE_UE8M0_BLOCK,
		.dim = CODES,
		.block_size = CODES / SCALES,
		.rows = t->blocks * ROWS,
	};
	h->code_stride = layout == ENGRAM_PACKED ? RECORD : CODES;
	h->scale_stride = layout == ENGRAM_PACKED ? RECORD : SCALES;
	h->scales_offset =
		layout == ENGRAM_PACKED ? CODES : t->blocks * ROWS * CODES;
}

static void pack(struct thread *t)
{
	struct engram_error err;
	struct pack p;
	uint64_t i;

	if (pack_init(&p, &t->header, &err))
		die("pack_init");
	pack_begin(&p, t->base, &t->header);
	for (i = 0; i < t->blocks; i++) {
		const uint8_t *from = t->bounce + i % BOUNCE * BLOCK;

		pack_rows(&p, i * ROWS, ROWS, from,
			  from + (size_t)ROWS * CODES);
	}
	t->sum = pack_end(&p);
	pack_free(&p);
}

static void copy(struct thread *t)
{
	uint64_t i;

	for (i = 0; i < t->blocks; i++)
		memcpy(t->base + i * BLOCK, t->bounce + i % BOUNCE * BLOCK,
		       BLOCK);
	t->sum = t->base[0];
}

static void *run(void *arg)
{
	struct thread *t = arg;

	pthread_barrier_wait(t->start);
	clock_gettime(CLOCK_MONOTONIC, &t->began);
	if (t->work == COPY)
		copy(t);
	else if (t->work == PACK_PACKED || t->work == PACK_SPLIT)
		pack(t);
	else
		t->sum = segment_hash_rows(&t->header, t->base,
					   t->base + t->header.scales_offset,
					   t->header.rows);
	clock_gettime(CLOCK_MONOTONIC, &t->ended);
	return NULL;
}

static double seconds(const struct timespec *t)
{
	return (double)t->tv_sec + (double)t->tv_nsec / 1e9;
}

/* From the first to begin to the last to end. */
static double span(const struct thread *threads, unsigned int count)
{
	double first = seconds(&threads[0].began), last = 0;
	unsigned int i;

	for (i = 0; i < count; i++) {
		if (seconds(&threads[i].began) < first)
			first = seconds(&threads[i].began);
		if (seconds(&threads[i].ended) > last)
			last = seconds(&threads[i].ended);
	}
	return last - first;
}

static double measure(struct thread *threads, unsigned int count,
		      enum work work)
{
	pthread_barrier_t start;
	double best = 0;
	unsigned int i, k;

	for (k = 0; k < REPEAT; k++) {
		double s;

		pthread_barrier_init(&start, NULL, count);
		for (i = 0; i < count; i++) {
			struct thread *t = &threads[i];

			t->work = work;
			t->start = &start;
			place(t, work == PACK_SPLIT || work == CHECK_SPLIT
					 ? ENGRAM_SPLIT
					 : ENGRAM_PACKED);
			if (pthread_create(&t->id, NULL, run, t))
				die("pthread_create");
		}
		for (i = 0; i < count; i++)
			pthread_join(threads[i].id, NULL);
		pthread_barrier_destroy(&start);
		s = span(threads, count);
		if (!k || s < best)
			best = s;
	}
	return best;
}

static void measure_all(struct thread *threads, unsigned int count,
			uint64_t blocks)
{
	unsigned int i, work;

	for (i = 0; i < count; i++)
		threads[i].blocks = blocks / count;
	for (work = 0; work < WORKS; work++)
		printf("{\"work\": \"%s\", \"isa\": \"%s\", \"threads\": %u,"
		       " \"gb_per_second\": %.3f}\n",
		       names[work], engram_isa_name(engram_cpu_isa()), count,
		       (double)(blocks / count * count * BLOCK) / 1e9 /
			       measure(threads, count, (enum work)work));
	fflush(stdout);
}

int main(int argc, char **argv)
{
	static struct thread threads[THREADS_MAX];
	const double gib = argc > 1 ? atof(argv[1]) : 2;
	const uint64_t blocks = (uint64_t)(gib * (1u << 30)) / BLOCK;
	uint8_t *base, *bounce;
	unsigned int i, most = 1;
	int a;

	for (a = 2; a < argc; a++)
		if ((unsigned int)atoi(argv[a]) > most)
			most = (unsigned int)atoi(argv[a]);
	if (most > THREADS_MAX || blocks < most) {
		fprintf(stderr,
			"memory_probe: at most %u threads, and a block "
			"for each\n",
			THREADS_MAX);
		return 2;
	}
	base = map(blocks * BLOCK);
	bounce = map(most * BOUNCE * BLOCK);
	threads[0].base = base;
	for (i = 0; i < most; i++)
		threads[i].bounce = bounce + (size_t)i * BOUNCE * BLOCK;
	if (argc < 3)
		measure_all(threads, 1, blocks);
	for (a = 2; a < argc; a++) {
		const unsigned int n = (unsigned int)atoi(argv[a]);

		for (i = 0; i < n; i++)
			threads[i].base = base + blocks / n * i * BLOCK;
		measure_all(threads, n, blocks);
	}
	return 0;
}
