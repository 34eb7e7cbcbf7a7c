/* SPDX-License-Identifier: Apache-2.0 */
/* A segment's life: create, reserve, fill, publish, reopen, map, discard. */
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "segment_fixture.h"

static char instance[64];
static struct engram_error err;

static struct engram_segment_writer *make(struct engram_backing backing,
					  uint32_t layout)
{
	struct engram_segment_spec spec = fixture_spec(instance, layout);
	struct engram_segment_writer *w;
	const struct engram_segment_header *h;
	uint64_t total;

	CHECK_OK(engram_segment_plan(&spec, &total, &err));
	CHECK_OK(engram_segment_create(&backing, &spec, &w, &err));
	h = engram_segment_writer_header(w);
	CHECK(h->total_bytes == total && total % ENGRAM_SEGMENT_ALIGN == 0);
	CHECK_OK(engram_segment_reserve(w, h->data_offset,
					total - h->data_offset, &err));
	fixture_fill(w);
	return w;
}

static void check_rows(const struct engram_segment_map *map)
{
	const struct engram_segment_header *h = map->header;
	uint64_t codes = h->dim, record = engram_segment_record_bytes(h), r, i;

	for (r = map->row_begin; r < map->row_end; r++)
		for (i = 0; i < record; i++) {
			uint64_t n = r - map->row_begin;
			const uint8_t *at =
				i < codes ? (const uint8_t *)map->codes +
						    n * h->code_stride + i
					  : (const uint8_t *)map->scales +
						    n * h->scale_stride + i -
						    codes;

			CHECK(*at == fixture_byte(r, i));
		}
}

static void check_map(int fd)
{
	static const uint64_t ranges[][2] = {
		{0, UINT64_MAX}, {0, 18}, {18, 50}, {31, 31}, {49, 50}};
	struct engram_segment_map map;
	uint64_t bad = 99;
	size_t i;

	for (i = 0; i < sizeof(ranges) / sizeof(ranges[0]); i++) {
		CHECK_OK(engram_segment_map_fd(fd, ranges[i][0], ranges[i][1],
					       &map, &err));
		check_rows(&map);
		if (map.row_begin == map.row_end)
			CHECK(!map.codes && !map.scales && !map.data_map[0]);
		engram_segment_unmap(&map);
	}
	CHECK(engram_segment_map_fd(fd, 7, 51, &map, &err) == ENGRAM_EINVAL);
	CHECK_STR(err.message, "map segment: rows 7..51 of a segment of 50");
	CHECK(!map.header);
	CHECK_OK(engram_segment_map_fd(fd, 0, UINT64_MAX, &map, &err));
	CHECK_OK(engram_segment_verify(&map, 0, 50, &bad, &err));
	engram_segment_unmap(&map);
}

/* May this process write to the page?  The kernel reads one into it. */
static int writable(void *page)
{
	uint8_t byte = *(const uint8_t *)page;
	int pipes[2], r;

	CHECK(!pipe(pipes) && write(pipes[1], &byte, 1) == 1);
	r = read(pipes[0], page, 1) == 1;
	CHECK(r || errno == EFAULT);
	close(pipes[0]);
	close(pipes[1]);
	return r;
}

static void check_immutable(int fd)
{
	CHECK((fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDONLY);
	CHECK(fcntl(fd, F_GETFD) & FD_CLOEXEC);
	CHECK(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) ==
	      MAP_FAILED);
}

/* The device that needs it: a mapping to write to, until it is protected. */
static void check_writable(struct engram_segment_writer *w, int read_only)
{
	struct engram_segment_map map;
	uint8_t *first, was, other;
	const uint8_t *base;
	int fd;

	CHECK(engram_segment_map_writable(read_only, 0, 50, &map, &err) ==
	      ENGRAM_EPERM);
	CHECK(strstr(err.message, " bytes for writing: "));
	CHECK_STR(err.fix, "ask the sidecar for a writable descriptor");
	CHECK_OK(engram_segment_reopen_writable(w, &fd, &err));
	CHECK((fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDWR);
	CHECK(fcntl(fd, F_GETFD) & FD_CLOEXEC);
	CHECK_OK(engram_segment_map_writable(fd, 18, 50, &map, &err));
	close(fd);
	check_rows(&map);
	first = (uint8_t *)map.codes;
	was = *first;
	other = was ^ 1;
	*first = other; /* seen by all, and put back */
	base = engram_segment_writer_base(w);
	CHECK(base[map.header->codes_offset + 18 * map.header->code_stride] ==
	      other);
	*first = was;
	CHECK(!writable((void *)map.header));
	CHECK(writable(map.data_map[0]));
	CHECK_OK(engram_segment_protect(&map, &err));
	CHECK_OK(engram_segment_protect(&map, &err));
	CHECK(!writable(map.data_map[0]));
	CHECK(!map.data_map[1] || !writable(map.data_map[1]));
	check_rows(&map);
	engram_segment_unmap(&map);
}

static void check_sealed(struct engram_segment_writer *w)
{
	int fd;

	CHECK(engram_segment_reopen_writable(w, &fd, &err) ==
	      ENGRAM_EUNSUPPORTED);
	CHECK(fd == -1);
	CHECK(strstr(err.message, ": the memfd is sealed against writing"));
	CHECK_STR(err.fix, "use the shm or the hugetlbfs backing");
}

static void test_life(struct engram_backing backing, uint32_t layout)
{
	int fds = count_fds(), fd, named;
	struct engram_segment_writer *w;
	struct engram_segment_map map;
	char name[256];
	struct stat st;

	w = make(backing, layout);
	/* Unpublished: no final name, and a descriptor of it is not ready. */
	engram_segment_name(name, instance, "deepseek-v4.1-flash", 14, 3);
	if (backing.kind == ENGRAM_BACKING_SHM)
		CHECK(engram_segment_open(&backing, name, &fd, &err) ==
		      ENGRAM_ENOTFOUND);
	CHECK_OK(engram_segment_reopen(w, &fd, &err));
	CHECK(engram_segment_map_fd(fd, 0, 1, &map, &err) == ENGRAM_ENOTREADY);
	CHECK_STR(err.message,
		  "map segment: the segment is still being written");
	close(fd);

	CHECK_OK(engram_segment_publish(w, &err));
	CHECK_OK(engram_segment_reopen(w, &fd, &err));
	check_immutable(fd);
	check_map(fd);
	if (backing.kind == ENGRAM_BACKING_MEMFD)
		check_sealed(w);
	else
		check_writable(w, fd);
	if (backing.kind == ENGRAM_BACKING_SHM) {
		CHECK(count_names("/dev/shm", instance) == 1);
		CHECK_OK(engram_segment_open(&backing, name, &named, &err));
		CHECK(!fstat(named, &st) && (st.st_mode & 07777) == 0640);
		check_map(named);
		close(named);
	} else {
		CHECK((fcntl(fd, F_GET_SEALS) &
		       (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE |
			F_SEAL_SEAL)) == (F_SEAL_SHRINK | F_SEAL_GROW |
					  F_SEAL_FUTURE_WRITE | F_SEAL_SEAL));
	}
	/* A client's mapping outlives the name. */
	CHECK_OK(engram_segment_map_fd(fd, 0, UINT64_MAX, &map, &err));
	close(fd);
	engram_segment_discard(w);
	check_rows(&map);
	engram_segment_unmap(&map);
	CHECK(count_names("/dev/shm", instance) == 0);
	CHECK(count_fds() == fds);
}

static void test_names_taken(void)
{
	struct engram_segment_spec spec = fixture_spec(instance, ENGRAM_PACKED);
	struct engram_backing backing = fixture_shm();
	struct engram_segment_writer *a, *b;
	char want[512];

	/* Two writers of one name at a time. */
	a = make(backing, ENGRAM_PACKED);
	CHECK(engram_segment_create(&backing, &spec, &b, &err) ==
	      ENGRAM_EEXIST);
	snprintf(want, sizeof(want),
		 "create segment: /dev/shm/engramd.%s.deepseek-v4.1-flash.14."
		 "g3.tmp exists already",
		 instance);
	CHECK_STR(err.message, want);
	CHECK_STR(err.fix, "if no engramd of that instance runs, remove what "
			   "it left with `engramctl prune`");
	CHECK(!b);
	/* Two publishers: the second loses nothing of the first. */
	CHECK_OK(engram_segment_publish(a, &err));
	b = make(backing, ENGRAM_SPLIT);
	CHECK(engram_segment_publish(b, &err) == ENGRAM_EEXIST);
	snprintf(want, sizeof(want),
		 "publish segment: /dev/shm/engramd.%s.deepseek-v4.1-flash.14."
		 "g3 exists already",
		 instance);
	CHECK_STR(err.message, want);
	engram_segment_discard(b);
	CHECK(count_names("/dev/shm", instance) == 1);
	engram_segment_discard(a);
	engram_segment_discard(NULL);
	CHECK(count_names("/dev/shm", instance) == 0);
}

/* Equal bytes, equal id: whatever the layout, generation and instance. */
static void test_content_id(void)
{
	struct engram_backing memfd = {.kind = ENGRAM_BACKING_MEMFD};
	struct engram_segment_writer *a = make(memfd, ENGRAM_PACKED);
	struct engram_segment_writer *b = make(memfd, ENGRAM_SPLIT);
	struct engram_segment_writer *c = make(memfd, ENGRAM_PACKED);
	const uint64_t *ia = engram_segment_writer_header(a)->content_id;
	const uint64_t *ib = engram_segment_writer_header(b)->content_id;
	const uint64_t *ic = engram_segment_writer_header(c)->content_id;

	engram_segment_writer_checksums(c)[0]++;
	CHECK_OK(engram_segment_publish(a, &err));
	CHECK_OK(engram_segment_publish(b, &err));
	CHECK_OK(engram_segment_publish(c, &err));
	CHECK(ia[0] && !memcmp(ia, ib, 16) && memcmp(ia, ic, 16));
	engram_segment_discard(a);
	engram_segment_discard(b);
	engram_segment_discard(c);
}

static void test_bad_specs(void)
{
	struct engram_segment_spec spec = fixture_spec(instance, ENGRAM_PACKED);
	uint64_t total;

	spec.head.rows = 49;
	CHECK(engram_segment_plan(&spec, &total, &err) == ENGRAM_EINVAL);
	CHECK_STR(err.message,
		  "table \"deepseek-v4.1-flash\" layer 14: 49 rows, but the "
		  "primes add up to at least 50");
	spec = fixture_spec("dotted.instance", ENGRAM_PACKED);
	CHECK(engram_segment_plan(&spec, &total, &err) == ENGRAM_EINVAL);
	CHECK_STR(err.message, "table \"deepseek-v4.1-flash\" layer 14: "
			       "\"dotted.instance\" is no instance name");
}

static int is_mapped(const char *name)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	char line[512];
	int found = 0;

	CHECK(maps);
	while (fgets(line, sizeof(line), maps))
		found |= strstr(line, name) != NULL;
	fclose(maps);
	return found;
}

/* MADV_DONTFORK: a forked child has neither mapping. */
static void test_fork(void)
{
	struct engram_backing memfd = {.kind = ENGRAM_BACKING_MEMFD};
	struct engram_segment_writer *w = make(memfd, ENGRAM_PACKED);
	int status;
	pid_t pid;

	CHECK(is_mapped("/memfd:engramd."));
	pid = fork();
	CHECK(pid >= 0);
	if (!pid)
		_exit(is_mapped("/memfd:engramd."));
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	engram_segment_discard(w);
}

int main(void)
{
	struct engram_backing shm = fixture_shm();
	struct engram_backing memfd = {.kind = ENGRAM_BACKING_MEMFD};

	fixture_instance(instance, "segment");
	umask(0777);
	test_life(shm, ENGRAM_PACKED);
	test_life(shm, ENGRAM_SPLIT);
	test_life(memfd, ENGRAM_PACKED);
	test_life(memfd, ENGRAM_SPLIT);
	test_names_taken();
	test_content_id();
	test_bad_specs();
	test_fork();
	return 0;
}
