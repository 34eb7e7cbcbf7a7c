/* SPDX-License-Identifier: Apache-2.0 */
/* Transparent huge pages: asked for, read back, and under every mapping. */
#include <errno.h>
#include <pthread.h>
#include <sys/mman.h>

#include "segment_fixture.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#define HUGE (UINT64_C(2) << 20)
#define ROWS 100000

static char instance[64];
static struct engram_error err;

static struct engram_segment_writer *create(struct engram_backing backing)
{
	struct engram_segment_spec spec = fixture_spec(instance, ENGRAM_PACKED);
	int64_t primes[4] = {1, 1, 1, ROWS - 3}, offsets[4] = {0, 1, 2, 3};
	struct engram_segment_writer *w;

	spec.primes = primes;
	spec.offsets = offsets;
	spec.head.rows = ROWS;
	spec.head.dim = 256;
	CHECK_OK(engram_segment_create(&backing, &spec, &w, &err));
	return w;
}

/* Has the kernel a huge page for anybody now? */
static int kernel_has_some(void)
{
	char *room = mmap(NULL, 2 * HUGE, PROT_NONE,
			  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *at = room + (HUGE - (uintptr_t)room % HUGE) % HUGE;
	int r;

	CHECK(room != MAP_FAILED);
	CHECK(mmap(at, HUGE, PROT_READ | PROT_WRITE,
		   MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at);
	*at = 1;
	r = madvise(at, HUGE, MADV_COLLAPSE);
	if (r)
		printf("how many are obtained is not tested: %s\n",
		       strerror(errno));
	munmap(room, 2 * HUGE);
	return !r;
}

static void check_pattern(const unsigned char *p, uint64_t bytes)
{
	uint64_t i;

	for (i = 0; i < bytes; i += 4096)
		CHECK(p[i] == (unsigned char)(i / 4096 * 37 + 1));
}

struct filler {
	unsigned char *begin;
	uint64_t bytes;
};

static void *fill(void *arg)
{
	const struct filler *f = arg;
	uint64_t i;

	for (i = 0; i < f->bytes; i += 4096)
		f->begin[i] = (unsigned char)(i / 4096 * 37 + 1);
	return NULL;
}

/* Pages that somebody writes to while they become huge keep every byte. */
static void test_while_written(struct engram_backing backing)
{
	struct engram_segment_writer *w = create(backing);
	const struct engram_segment_header *h = engram_segment_writer_header(w);
	struct filler f = {(unsigned char *)engram_segment_writer_base(w) +
				   h->data_offset,
			   h->total_bytes - h->data_offset};
	pthread_t id;

	CHECK(!pthread_create(&id, NULL, fill, &f));
	CHECK_OK(engram_segment_reserve(w, h->data_offset, f.bytes, &err));
	CHECK(!pthread_join(id, NULL));
	check_pattern(f.begin, f.bytes);
	engram_segment_discard(w);
}

/* Address and offset agree, so that one entry can map a huge page. */
static void check_place(const void *p, uint64_t offset)
{
	CHECK(((uintptr_t)p - offset) % HUGE == 0);
}

static void check_reader(struct engram_segment_writer *w)
{
	const struct engram_segment_header *h;
	struct engram_segment_map map;
	int fd;

	CHECK_OK(engram_segment_reopen(w, &fd, &err));
	CHECK_OK(engram_segment_map_fd(fd, 777, ROWS, &map, &err));
	h = map.header;
	check_place(h, 0);
	check_place(map.codes, h->codes_offset + 777 * h->code_stride);
	CHECK(((const unsigned char *)map.codes)[0] ==
	      ((const unsigned char *)engram_segment_writer_base(
		      w))[h->codes_offset + 777 * h->code_stride]);
	engram_segment_unmap(&map);
	close(fd);
}

static void test_obtained(struct engram_backing backing, int expected)
{
	struct engram_segment_writer *w = create(backing);
	struct engram_segment_header *h = engram_segment_writer_header(w);
	const uint64_t total = h->total_bytes;
	uint64_t mapped, huge;

	check_place(h, 0);
	CHECK_OK(engram_segment_reserve(w, h->data_offset,
					total - h->data_offset, &err));
	memset((char *)h + h->data_offset, 0x5a, total - h->data_offset);
	CHECK_OK(engram_segment_huge(w, &mapped, &huge, &err));
	CHECK(mapped == total && huge <= total);
	if (expected)
		CHECK(huge == total);
	CHECK_OK(engram_segment_publish(w, &err));
	/* Turned read-only they are what they were. */
	CHECK_OK(engram_segment_huge(w, &mapped, &huge, &err));
	CHECK(mapped == total);
	if (expected)
		CHECK(huge == total);
	check_reader(w);
	engram_segment_discard(w);
}

static void test_backing(struct engram_backing backing, int some)
{
	backing.huge = ENGRAM_HUGE_OFF;
	test_obtained(backing, 0);
	backing.huge = ENGRAM_HUGE_TRY;
	test_obtained(backing, some);
	test_while_written(backing);
	if (!some)
		return;
	backing.huge = ENGRAM_HUGE_REQUIRE;
	test_obtained(backing, 1);
}

int main(void)
{
	const struct engram_backing memfd = {.kind = ENGRAM_BACKING_MEMFD};
	const int some = kernel_has_some();

	fixture_instance(instance, "huge");
	test_backing(fixture_shm(), some);
	test_backing(memfd, some);
	CHECK(!count_names("/dev/shm", instance));
	return 0;
}
