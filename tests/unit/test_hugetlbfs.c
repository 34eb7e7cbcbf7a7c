/* SPDX-License-Identifier: Apache-2.0 */
/* Segments and the control page on hugetlbfs, where sizes, offsets and
 * mappings go by whole huge pages and nothing can be written but by mapping.
 * Needs free huge pages of the default size and leave to mount. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include "engram_control.h"
#include "segment_fixture.h"

#define SKIP 77
/* A split segment of the fixture is a header, codes and scales. */
#define PAGES_NEEDED 4

static struct engram_backing backing = {.kind = ENGRAM_BACKING_HUGETLBFS};
static struct engram_error err;
static char dir[] = "/tmp/engram-hugetlbfs-XXXXXX";

static unsigned long meminfo(const char *format)
{
	FILE *f = fopen("/proc/meminfo", "re");
	unsigned long value = 0;
	char line[128];

	CHECK(f);
	while (fgets(line, sizeof(line), f))
		if (sscanf(line, format, &value) == 1)
			break;
	fclose(f);
	return value;
}

static unsigned long free_pages(void)
{
	return meminfo("HugePages_Free: %lu") - meminfo("HugePages_Rsvd: %lu");
}

static int mount_private(void)
{
	if (free_pages() < PAGES_NEEDED) {
		printf("skipped: %lu huge pages are free, %d are needed "
		       "(vm.nr_hugepages)\n",
		       free_pages(), PAGES_NEEDED);
		return 0;
	}
	if (unshare(CLONE_NEWNS) ||
	    mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
	    mount("none", dir, "hugetlbfs", 0, NULL)) {
		printf("skipped: can not mount hugetlbfs: %s\n",
		       strerror(errno));
		return 0;
	}
	return 1;
}

static void check_rows(int fd, uint64_t begin, uint64_t end)
{
	const struct engram_segment_header *h;
	struct engram_segment_map map;
	uint64_t r, i;

	CHECK_OK(engram_segment_map_fd(fd, begin, end, &map, &err));
	h = map.header;
	for (r = 0; r < map.row_end - map.row_begin; r++) {
		const uint8_t *codes = map.codes, *scales = map.scales;

		for (i = 0; i < h->dim; i++)
			CHECK(codes[r * h->code_stride + i] ==
			      fixture_byte(begin + r, i));
		for (i = 0; i < h->dim / h->block_size; i++)
			CHECK(scales[r * h->scale_stride + i] ==
			      fixture_byte(begin + r, h->dim + i));
	}
	if (!begin && map.row_end == h->rows)
		CHECK_OK(engram_segment_verify(&map, 0, h->rows, NULL, &err));
	engram_segment_unmap(&map);
}

/* mprotect wants whole huge pages. */
static void check_protect(struct engram_segment_writer *w)
{
	struct engram_segment_map map;
	int fd;

	CHECK_OK(engram_segment_reopen_writable(w, &fd, &err));
	CHECK_OK(engram_segment_map_writable(fd, 18, 31, &map, &err));
	close(fd);
	CHECK_OK(engram_segment_protect(&map, &err));
	engram_segment_unmap(&map);
}

static void test_segment(uint32_t layout)
{
	struct engram_segment_spec spec = fixture_spec("huge", layout);
	const unsigned long before = free_pages();
	const struct engram_segment_header *h;
	struct engram_segment_entry *entries;
	struct engram_segment_writer *w;
	struct statfs fs;
	char name[256];
	size_t count;
	int fd;

	CHECK_OK(engram_segment_create(&backing, &spec, &w, &err));
	h = engram_segment_writer_header(w);
	CHECK(!statfs(dir, &fs));
	CHECK(h->total_bytes % (uint64_t)fs.f_bsize == 0);
	CHECK_OK(engram_segment_reserve(w, h->data_offset,
					h->total_bytes - h->data_offset, &err));
	fixture_fill(w);
	CHECK_OK(engram_segment_publish(w, &err));
	CHECK_OK(engram_segment_list(&backing, "huge", &entries, &count, &err));
	CHECK(count == 1 && !entries[0].temporary);
	CHECK(entries[0].bytes == h->total_bytes);
	memcpy(name, entries[0].name, sizeof(name));
	free(entries);
	CHECK_OK(engram_segment_open(&backing, name, &fd, &err));
	check_rows(fd, 0, UINT64_MAX);
	check_rows(fd, 18, 31);
	check_rows(fd, 50, 50);
	close(fd);
	CHECK_OK(engram_segment_reopen(w, &fd, &err));
	check_rows(fd, 49, 50);
	close(fd);
	check_protect(w);
	CHECK_OK(engram_segment_remove(&backing, name, &err));
	engram_segment_discard(w);
	/* Every mapping was undone, or pages would still be taken. */
	CHECK(free_pages() == before);
	CHECK(count_names(dir, "engramd.") == 0);
}

static void test_control(void)
{
	const unsigned long before = free_pages();
	const struct engram_control_page *page;
	struct engram_control_owner *o;
	uint64_t epoch;
	int fd;

	CHECK_OK(engram_control_own(&backing, "huge", &o, &err));
	CHECK_OK(engram_control_reopen(o, &fd, &err));
	CHECK_OK(engram_control_map_fd(fd, &page, &err));
	close(fd);
	epoch = engram_control_load64(&page->boot_epoch);
	CHECK(epoch);
	/* Taken over in place. */
	engram_control_disown(o, 0);
	CHECK_OK(engram_control_own(&backing, "huge", &o, &err));
	CHECK(engram_control_load64(&page->boot_epoch) &&
	      engram_control_load64(&page->boot_epoch) != epoch);
	engram_control_unmap(page);
	engram_control_disown(o, 1);
	CHECK(free_pages() == before);
	CHECK(count_names(dir, "engramd.") == 0);
}

/* The same pages without a mount. */
static void test_memfd(void)
{
	const struct engram_backing memfd = {
		.kind = ENGRAM_BACKING_MEMFD,
		.memfd_page = meminfo("Hugepagesize: %lu") << 10};
	struct engram_segment_spec spec = fixture_spec("huge", ENGRAM_PACKED);
	const unsigned long before = free_pages();
	struct engram_segment_writer *w;
	const struct engram_segment_header *h;
	struct engram_control_owner *o;
	uint64_t room, mapped, huge;
	int fd;

	CHECK_OK(engram_backing_room(&memfd, &room, &err));
	CHECK(room >= before * memfd.memfd_page);
	CHECK_OK(engram_segment_create(&memfd, &spec, &w, &err));
	h = engram_segment_writer_header(w);
	CHECK(h->total_bytes % memfd.memfd_page == 0);
	CHECK_OK(engram_segment_reserve(w, h->data_offset,
					h->total_bytes - h->data_offset, &err));
	fixture_fill(w);
	CHECK_OK(engram_segment_huge(w, &mapped, &huge, &err));
	CHECK(mapped == h->total_bytes && huge == mapped);
	CHECK_OK(engram_segment_publish(w, &err));
	CHECK_OK(engram_segment_reopen(w, &fd, &err));
	check_rows(fd, 0, UINT64_MAX);
	close(fd);
	engram_segment_discard(w);
	CHECK(free_pages() == before);
	/* A control page takes none of them. */
	CHECK_OK(engram_control_own(&memfd, "huge", &o, &err));
	CHECK(free_pages() == before);
	engram_control_disown(o, 1);
}

static void test_memfd_size(void)
{
	/* No architecture has pages of 128 GiB. */
	const struct engram_backing memfd = {.kind = ENGRAM_BACKING_MEMFD,
					     .memfd_page = UINT64_C(128) << 30};
	struct engram_segment_spec spec = fixture_spec("huge", ENGRAM_PACKED);
	struct engram_segment_writer *w;

	CHECK(engram_segment_create(&memfd, &spec, &w, &err) && !w);
	CHECK(strstr(err.fix, "memory.huge_page"));
}

/* More than the pool has: refused with both figures, nothing kept. */
static void test_pool_too_small(void)
{
	struct engram_segment_spec spec = fixture_spec("huge", ENGRAM_PACKED);
	const unsigned long before = free_pages();
	int64_t primes[4] = {7, 11, 13, 0}, offsets[4] = {0, 7, 18, 31};
	struct engram_segment_writer *w;
	const uint64_t rows = UINT64_C(1) << 34; /* a TiB */

	primes[3] = (int64_t)rows - 31;
	spec.primes = primes;
	spec.offsets = offsets;
	spec.head.rows = rows;
	CHECK(engram_segment_create(&backing, &spec, &w, &err) ==
	      ENGRAM_ENOSPACE);
	CHECK(!w && err.needed > rows * 66);
	CHECK(free_pages() == before);
	CHECK(count_names(dir, "engramd.") == 0);
}

/* A mount without a size has the room of the pool; one with a size, that. */
static void test_room(void)
{
	const uint64_t page = meminfo("Hugepagesize: %lu") << 10;
	char size[32];
	uint64_t room;

	CHECK_OK(engram_backing_room(&backing, &room, &err));
	CHECK(room >= free_pages() * page && room < UINT64_MAX);
	snprintf(size, sizeof(size), "size=%llu", (unsigned long long)page);
	CHECK(!umount(dir) && !mount("none", dir, "hugetlbfs", 0, size));
	CHECK_OK(engram_backing_room(&backing, &room, &err));
	CHECK(room == page);
}

int main(void)
{
	int fds = count_fds(), mounted;

	CHECK(mkdtemp(dir));
	snprintf(backing.dir, sizeof(backing.dir), "%s", dir);
	mounted = mount_private();
	if (mounted) {
		test_segment(ENGRAM_PACKED);
		test_segment(ENGRAM_SPLIT);
		test_control();
		test_memfd();
		test_memfd_size();
		test_pool_too_small();
		test_room();
		CHECK(count_fds() == fds);
		CHECK(!umount(dir));
	}
	CHECK(!rmdir(dir));
	return mounted ? 0 : SKIP;
}
