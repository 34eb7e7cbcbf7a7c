/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What bench_load.py compares engramd with: other ways to get a table's bytes
 * into memory, and what pages cost.  One JSON object on stdout.
 *
 *	load_probe preadv|mmap DIR THREADS	into plain memory
 *	load_probe preadv-full|mmap-full DIR THREADS	and all that a load is:
 *		packed and hashed into shared memory, which is then locked
 *	load_probe raw DIR THREADS	read with O_DIRECT and forgotten: into
 *the same few buffers, on huge pages, which drives fill fastest load_probe drop
 *DIR	the files go out of the page cache load_probe pages small|huge GIB
 *THREADS	first touch and pinning
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "checkpoint.h"
#include "clock.h"
#include "loader_plan.h"
#include "pack.h"

#define THREADS_MAX 256u
#define PIECE	    (UINT64_C(8) << 20) /* read at once */
#define CLAIM	    (UINT64_C(64) << 20)
#define ALIGN	    UINT64_C(4096)
#define HUGE	    (UINT64_C(2) << 20)

/* Bytes of a file that come to lie at `out`, in order. */
struct run {
	const char *path;
	uint64_t offset, bytes;
	uint8_t *out;
	int direct, buffered;
	const uint8_t *map; /* the whole file */
};

struct layer {
	struct run codes, scales;
	struct loader_plan plan;
	struct engram_segment_header header;
	uint8_t *records; /* packed, shared */
};

static struct layer layers[ENGRAM_LAYERS_MAX];
static unsigned int num_layers;
static bool mapped; /* not read */
static _Atomic uint64_t next;

__attribute__((noreturn)) static void die(const char *what)
{
	fprintf(stderr, "load_probe: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void *plain(uint64_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		die("mmap");
	return p;
}

/* ---- threads ---- */

static void spread(unsigned int threads, void *(*work)(void *))
{
	pthread_t ids[THREADS_MAX];
	unsigned int i;

	atomic_store(&next, 0);
	for (i = 0; i < threads; i++)
		if (pthread_create(&ids[i], NULL, work, NULL))
			die("pthread_create");
	for (i = 0; i < threads; i++)
		pthread_join(ids[i], NULL);
}

/* The n-th piece of `unit` bytes of all runs; false: there is none. */
static bool find(uint64_t n, struct run **run, uint64_t *begin, uint64_t *end)
{
	unsigned int i;

	for (i = 0; i < 2 * num_layers; i++) {
		struct run *r =
			i % 2 ? &layers[i / 2].scales : &layers[i / 2].codes;
		const uint64_t pieces = (r->bytes + CLAIM - 1) / CLAIM;

		if (n >= pieces) {
			n -= pieces;
			continue;
		}
		*run = r;
		*begin = n * CLAIM;
		*end = *begin + CLAIM < r->bytes ? *begin + CLAIM : r->bytes;
		return true;
	}
	return false;
}

/* ---- into plain memory ---- */

/* Direct reads of whole units, by way of a buffer for what is not aligned, as
 * no tensor is. */
static void read_piece(const struct run *run, uint8_t *buffer, uint64_t begin,
		       uint64_t end)
{
	const uint64_t from = run->offset + begin;
	const uint64_t skip = from % ALIGN;
	const uint64_t want = skip + end - begin;
	const uint64_t bytes = (want + ALIGN - 1) / ALIGN * ALIGN;
	uint64_t done = 0;
	ssize_t n;

	while (done < want) {
		n = pread(run->direct, buffer + done, bytes - done,
			  (off_t)(from - skip + done));
		if (n <= 0)
			die(run->path);
		done += (uint64_t)n;
		if (done < want)
			done -= done % ALIGN;
	}
	memcpy(run->out + begin, buffer + skip, end - begin);
}

static void *copy_thread(void *arg)
{
	uint64_t begin, end, at, to;
	uint8_t *buffer = NULL;
	struct run *run;

	if (posix_memalign((void **)&buffer, ALIGN, PIECE + 2 * ALIGN))
		die("no memory");
	while (find(atomic_fetch_add(&next, 1), &run, &begin, &end))
		for (at = begin; at < end; at = to) {
			to = at + PIECE < end ? at + PIECE : end;
			if (mapped)
				memcpy(run->out + at,
				       run->map + run->offset + at, to - at);
			else
				read_piece(run, buffer, at, to);
		}
	free(buffer);
	return arg;
}

/* Whole units only, the same as the others but for the edges of tensors. */
static void *raw_thread(void *arg)
{
	uint64_t begin, end, at;
	uint8_t *buffer = NULL;
	struct run *run;
	ssize_t n;

	if (posix_memalign((void **)&buffer, HUGE, PIECE))
		die("no memory");
	(void)madvise(buffer, PIECE, MADV_HUGEPAGE);
	while (find(atomic_fetch_add(&next, 1), &run, &begin, &end)) {
		at = (run->offset + begin) / ALIGN * ALIGN;
		for (end += run->offset; at < end; at += (uint64_t)n) {
			n = pread(run->direct, buffer, PIECE, (off_t)at);
			if (n <= 0 || (n % ALIGN && at + (uint64_t)n < end))
				die(run->path);
			/* What it reads past the end is another's. */
			if (at + PIECE >= end)
				break;
		}
	}
	free(buffer);
	return arg;
}

/* ---- the rest of a load ---- */

static void *pack_thread(void *arg)
{
	struct engram_error err;
	struct pack pack;
	unsigned int i;
	uint64_t chunk, row, end;

	if (pack_init(&pack, &layers[0].header, &err))
		die(err.message);
	for (;;) {
		chunk = atomic_fetch_add(&next, 1);
		for (i = 0;
		     i < num_layers && chunk >= layers[i].plan.num_chunks; i++)
			chunk -= layers[i].plan.num_chunks;
		if (i == num_layers)
			break;
		row = chunk * layers[i].plan.chunk_rows;
		end = loader_plan_chunk_end(&layers[i].plan, chunk);
		pack_begin(&pack, layers[i].records, &layers[i].header);
		pack_rows(&pack, row, end - row,
			  layers[i].codes.out + row * layers[i].plan.code_bytes,
			  layers[i].scales.out +
				  row * layers[i].plan.scale_bytes);
		(void)pack_end(&pack);
	}
	pack_free(&pack);
	return arg;
}

static void finish_load(unsigned int threads)
{
	unsigned int i;

	spread(threads, pack_thread);
	for (i = 0; i < num_layers; i++)
		if (mlock(layers[i].records,
			  layers[i].header.rows * layers[i].header.code_stride))
			die("mlock");
}

/* ---- the checkpoint ---- */

static void open_run(struct run *run, const struct checkpoint *c,
		     const struct checkpoint_tensor *tensor)
{
	const struct checkpoint_file *file = &c->files[tensor->file];

	run->path = file->path;
	run->offset = tensor->offset;
	run->bytes = tensor->bytes;
	run->direct = open(run->path, O_RDONLY | O_CLOEXEC | O_DIRECT);
	run->buffered = open(run->path, O_RDONLY | O_CLOEXEC);
	if (run->direct < 0 || run->buffered < 0)
		die(run->path);
	run->map = mmap(NULL, file->identity.size, PROT_READ, MAP_PRIVATE,
			run->buffered, 0);
	if (run->map == MAP_FAILED)
		die(run->path);
}

static void open_all(const char *dir)
{
	const struct checkpoint_options options = {.dir = dir};
	struct engram_segment_source *sources;
	struct engram_segment_spec spec;
	struct checkpoint *c;
	struct engram_error err;
	unsigned int i;

	errno = 0;
	if (checkpoint_open(&options, &c, &err))
		die(err.message);
	num_layers = c->num_layers;
	for (i = 0; i < num_layers; i++) {
		struct engram_segment_header *h = &layers[i].header;

		if (checkpoint_spec(c, &c->layers[i], ENGRAM_PACKED, &spec,
				    &sources, &err))
			die(err.message);
		spec.instance = spec.table = "probe";
		spec.generation = 1;
		if (engram_segment_plan_header(&spec, h, &err))
			die(err.message);
		/* Without a header before them. */
		h->codes_offset = 0;
		h->scales_offset = engram_segment_record_bytes(h);
		open_run(&layers[i].codes, c, &c->layers[i].weight);
		open_run(&layers[i].scales, c, &c->layers[i].scale);
		if (loader_plan_init(&layers[i].plan, h, &c->layers[i], &err))
			die(err.message);
	}
}

static void drop(void)
{
	unsigned int i;

	for (i = 0; i < num_layers; i++) {
		(void)fsync(layers[i].codes.buffered);
		(void)posix_fadvise(layers[i].codes.buffered, 0, 0,
				    POSIX_FADV_DONTNEED);
		(void)posix_fadvise(layers[i].scales.buffered, 0, 0,
				    POSIX_FADV_DONTNEED);
	}
}

/* Where everything goes; addresses only. */
static void make_room(bool full)
{
	unsigned int i;

	for (i = 0; i < num_layers; i++) {
		struct layer *l = &layers[i];
		const uint64_t bytes = l->header.rows * l->header.code_stride;

		if (full && mapped) {
			/* Packed from where they are mapped. */
			l->codes.out =
				(uint8_t *)l->codes.map + l->codes.offset;
			l->scales.out =
				(uint8_t *)l->scales.map + l->scales.offset;
		} else {
			l->codes.out = plain(l->codes.bytes);
			l->scales.out = plain(l->scales.bytes);
		}
		if (!full)
			continue;
		l->records = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
				  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
		if (l->records == MAP_FAILED)
			die("mmap");
		(void)madvise(l->records, bytes, MADV_HUGEPAGE);
	}
}

static int load(const char *way, const char *dir, unsigned int threads)
{
	const bool full = strstr(way, "-full") != NULL;
	const bool raw = !strcmp(way, "raw");
	uint64_t start, bytes = 0;
	double seconds;
	unsigned int i;

	mapped = !strncmp(way, "mmap", 4);
	open_all(dir);
	drop();
	if (!raw)
		make_room(full);
	start = clock_ns();
	if (raw)
		spread(threads, raw_thread);
	else if (!full || !mapped)
		spread(threads, copy_thread);
	if (full)
		finish_load(threads);
	seconds = clock_seconds_since(start);
	drop();
	for (i = 0; i < num_layers; i++)
		bytes += layers[i].codes.bytes + layers[i].scales.bytes;
	printf("{\"way\": \"%s\", \"threads\": %u, \"bytes\": %" PRIu64
	       ", \"seconds\": %.6f}\n",
	       way, threads, bytes, seconds);
	return 0;
}

/* ---- pages ---- */

static struct engram_segment_writer *writer;
static uint64_t total;

static void *touch_thread(void *arg)
{
	struct engram_error err;
	uint64_t at, bytes;

	for (;;) {
		at = atomic_fetch_add(&next, 1) * CLAIM;
		if (at >= total)
			return arg;
		bytes = total - at < CLAIM ? total - at : CLAIM;
		errno = 0;
		if (engram_segment_reserve(writer, at, bytes, &err))
			die(err.message);
	}
}

static int pages(bool huge, double gib, unsigned int threads)
{
	const int64_t rows = (int64_t)(gib * (1 << 30) / 264);
	const int64_t primes[4] = {1, 1, 1, rows - 3};
	const int64_t offsets[4] = {0, 1, 2, 3}, multipliers[2] = {3, 5};
	const struct engram_backing memfd = {.kind = ENGRAM_BACKING_MEMFD,
					     .huge = huge ? ENGRAM_HUGE_TRY
							  : ENGRAM_HUGE_OFF};
	const struct engram_segment_spec spec = {
		.instance = "probe",
		.table = "probe",
		.generation = 1,
		.head = {.dtype = ENGRAM_F8_E4M3,
			 .record_layout = ENGRAM_PACKED,
			 .scale_scheme = ENGRAM_SCALE_UE8M0_BLOCK,
			 .dim = 256,
			 .block_size = 32,
			 .rows = (uint64_t)rows,
			 .min_ngram = 2,
			 .max_ngram = 2,
			 .num_heads = 4,
			 .num_cols = 4,
			 .compressed_vocab_size = 100,
			 .prime_seed = 100},
		.primes = primes,
		.offsets = offsets,
		.multipliers = multipliers};
	uint64_t there, on_huge, start;
	double touch, pin, unpin;
	struct engram_error err;
	void *base;

	errno = 0;
	if (engram_segment_create(&memfd, &spec, &writer, &err))
		die(err.message);
	total = engram_segment_writer_header(writer)->total_bytes;
	base = engram_segment_writer_base(writer);
	start = clock_ns();
	spread(threads, touch_thread);
	touch = clock_seconds_since(start);
	start = clock_ns();
	if (mlock(base, total))
		die("mlock");
	pin = clock_seconds_since(start);
	start = clock_ns();
	munlock(base, total);
	unpin = clock_seconds_since(start);
	if (engram_segment_huge(writer, &there, &on_huge, &err))
		die(err.message);
	engram_segment_discard(writer);
	printf("{\"pages\": \"%s\", \"threads\": %u, \"bytes\": %" PRIu64
	       ", \"huge_bytes\": %" PRIu64 ", \"touch_seconds\": %.6f,"
	       " \"pin_seconds\": %.6f, \"unpin_seconds\": %.6f}\n",
	       huge ? "huge" : "small", threads, total, on_huge, touch, pin,
	       unpin);
	return 0;
}

static unsigned int threads_of(const char *text)
{
	const int n = atoi(text);

	if (n < 1 || n > (int)THREADS_MAX) {
		fprintf(stderr, "load_probe: %s: 1 to %u threads\n", text,
			THREADS_MAX);
		exit(2);
	}
	return (unsigned int)n;
}

int main(int argc, char **argv)
{
	static const char *const ways[] = {"raw", "preadv", "mmap",
					   "preadv-full", "mmap-full"};
	size_t i;

	if (argc == 3 && !strcmp(argv[1], "drop")) {
		open_all(argv[2]);
		drop();
		return 0;
	}
	if (argc == 5 && !strcmp(argv[1], "pages"))
		return pages(!strcmp(argv[2], "huge"), atof(argv[3]),
			     threads_of(argv[4]));
	for (i = 0; argc == 4 && i < sizeof(ways) / sizeof(ways[0]); i++)
		if (!strcmp(argv[1], ways[i]))
			return load(argv[1], argv[2], threads_of(argv[3]));
	fprintf(stderr, "load_probe: see the top of load_probe.c\n");
	return 2;
}
