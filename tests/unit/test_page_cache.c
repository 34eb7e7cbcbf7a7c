/* SPDX-License-Identifier: Apache-2.0 */
/* A load leaves the page cache as it was, also where there are no direct
 * reads: what the host needs stays in memory. */
#include <sys/mman.h>

#include "loader_fixture.h"

/* Per cent of a file that buffered reads may leave: what the kernel had read
 * ahead, and had not finished. */
#define LEFT 5

static struct engram_error err;
static char instance[64];

static uint64_t file_bytes(const char *path)
{
	struct stat st;

	CHECK(!stat(path, &st));
	return (uint64_t)st.st_size;
}

/* Pages of a file that are in the page cache. */
static uint64_t cached(const char *path, uint64_t *pages)
{
	const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	const uint64_t bytes = file_bytes(path);
	const int fd = open(path, O_RDONLY | O_CLOEXEC);
	unsigned char *in;
	uint64_t i, found = 0;
	void *map;

	CHECK(fd >= 0);
	*pages = (bytes + page - 1) / page;
	map = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
	in = malloc(*pages);
	CHECK(map != MAP_FAILED && in && !mincore(map, bytes, in));
	for (i = 0; i < *pages; i++)
		found += in[i] & 1;
	free(in);
	munmap(map, bytes);
	close(fd);
	return found;
}

static void drop(const char *path)
{
	const int fd = open(path, O_RDONLY | O_CLOEXEC);

	CHECK(fd >= 0 && !fsync(fd));
	CHECK(!posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED));
	close(fd);
}

static void load(struct loader_case *c, enum loader_engine engine,
		 enum loader_direct direct)
{
	const struct loader_options o = {
		.engine = engine, .direct = direct, .threads = 2};
	static struct loader_progress progress;
	struct loader_report report;
	uint64_t pages, left;

	memset(&progress, 0, sizeof(progress));
	drop(c->paths[0]);
	if (cached(c->paths[0], &pages)) {
		printf("skipped: what /var/tmp is on keeps files in memory\n");
		exit(77);
	}
	loader_case_segment(c, instance);
	CHECK_OK(loader_case_fill(c, &o, &progress, &report, &err));
	left = cached(c->paths[0], &pages);
	engram_segment_discard(c->writer);
	c->writer = NULL;
	printf("%s, %s: %llu of %llu pages are cached\n",
	       loader_engine_name(report.engine),
	       report.direct ? "direct" : "buffered", (unsigned long long)left,
	       (unsigned long long)pages);
	CHECK(left <= (report.direct ? 0 : pages * LEFT / 100));
}

int main(void)
{
	struct loader_case c = LOADER_CASE_CHUNKS;

	fixture_instance(instance, "page-cache");
	loader_case_files(&c);
	load(&c, LOADER_AUTO, LOADER_DIRECT_AUTO);
	load(&c, LOADER_AUTO, LOADER_DIRECT_OFF);
	load(&c, LOADER_PREADV, LOADER_DIRECT_OFF);
	loader_case_free(&c);
	return 0;
}
