/* SPDX-License-Identifier: Apache-2.0 */
/* A segment that its writer has left, taken over; and every difference from
 * what would be built now. */
#include <sys/stat.h>

#include "segment_fixture.h"

static char instance[64];
static const struct engram_backing shm = {.kind = ENGRAM_BACKING_SHM,
					  .dir = "/dev/shm"};
static struct engram_error err;

static void make_and_leave(char name[256])
{
	struct engram_segment_spec spec = fixture_spec(instance, ENGRAM_PACKED);
	const struct engram_segment_header *h;
	struct engram_segment_writer *w;

	engram_segment_name(name, instance, spec.table, 14, 3);
	CHECK_OK(engram_segment_create(&shm, &spec, &w, &err));
	h = engram_segment_writer_header(w);
	CHECK_OK(engram_segment_reserve(w, 0, h->total_bytes, &err));
	fixture_fill(w);
	CHECK_OK(engram_segment_publish(w, &err));
	engram_segment_leave(w);
	CHECK(count_names("/dev/shm", instance) == 1);
}

/* What was published can be read, lent and verified; discarding it removes
 * the name, leaving it does not. */
static void taken_over(void)
{
	struct engram_segment_writer *w;
	struct engram_segment_map map;
	uint64_t bad;
	char name[256];
	int fd;

	make_and_leave(name);
	CHECK_OK(engram_segment_adopt(&shm, name, &w, &err));
	CHECK_OK(engram_segment_reopen(w, &fd, &err));
	CHECK_OK(engram_segment_map_fd(fd, 0, UINT64_MAX, &map, &err));
	close(fd);
	CHECK_OK(engram_segment_verify(&map, 0, FIXTURE_ROWS, &bad, &err));
	CHECK(!memcmp(map.header, engram_segment_writer_base(w),
		      map.header_bytes));
	engram_segment_unmap(&map);
	engram_segment_leave(w);
	CHECK(count_names("/dev/shm", instance) == 1);
	CHECK_OK(engram_segment_adopt(&shm, name, &w, &err));
	engram_segment_discard(w);
	CHECK(count_names("/dev/shm", instance) == 0);
	CHECK(engram_segment_adopt(&shm, name, &w, &err) == ENGRAM_ENOTFOUND);
	CHECK(!w);
}

/* A segment of another user, and a link, are nobody's to adopt. */
static void of_another(void)
{
	struct engram_segment_writer *w;
	char name[256], path[512], link[512];

	make_and_leave(name);
	snprintf(path, sizeof(path), "/dev/shm/%s", name);
	if (geteuid() == 0) {
		CHECK(!chown(path, 12345, (gid_t)-1));
		CHECK(engram_segment_adopt(&shm, name, &w, &err) ==
		      ENGRAM_EPERM);
		CHECK(strstr(err.message, "a file of user 12345"));
		CHECK(!chown(path, 0, (gid_t)-1));
	} else {
		puts("not root: no file of another user");
	}
	snprintf(link, sizeof(link), "/dev/shm/engramd.%s.other.14.g3",
		 instance);
	CHECK(!symlink(path, link));
	CHECK(engram_segment_adopt(&shm, strrchr(link, '/') + 1, &w, &err));
	CHECK(!unlink(link) && !unlink(path));
}

static int64_t other_primes[4] = {11, 7, 13, 19};
static int64_t other_offsets[4] = {0, 11, 18, 31};
static int64_t other_multipliers[3] = {3, 5, 11};
static int32_t other_map[5] = {0, 1, 2, 2, 0};
static struct engram_segment_source other_source;

/* One change each; NULL at the end. */
static const char *change(int which, struct engram_segment_spec *spec)
{
	switch (which) {
	case 0:
		spec->table = "another";
		return "its names differ";
	case 1:
		spec->head.record_layout = ENGRAM_SPLIT;
		return "its layout or geometry differs";
	case 2:
		spec->head.pad_id = 1;
		return "its layout or geometry differs";
	case 3:
		spec->head.layer_index = 0;
		return "its layout or geometry differs";
	case 4:
		spec->primes = other_primes;
		spec->offsets = other_offsets;
		return "its hash parameters differ";
	case 5:
		spec->multipliers = other_multipliers;
		return "its hash parameters differ";
	case 6:
		spec->token_map = other_map;
		return "its token map differs";
	case 7:
		spec->token_map = NULL;
		spec->token_map_len = 0;
		return "its token map differs";
	case 8:
		other_source = fixture_source;
		other_source.mtime_ns++;
		spec->sources = &other_source;
		return "its sources differ";
	case 9:
		other_source = fixture_source;
		other_source.header_hash++;
		spec->sources = &other_source;
		return "its sources differ";
	default:
		return NULL;
	}
}

static void compared(void)
{
	struct engram_segment_writer *w;
	const struct engram_segment_header *h;
	const char *want;
	char name[256];

	make_and_leave(name);
	CHECK_OK(engram_segment_adopt(&shm, name, &w, &err));
	h = engram_segment_writer_header(w);
	for (int i = 0;; i++) {
		struct engram_segment_spec spec =
			fixture_spec(instance, ENGRAM_PACKED);

		spec.generation = 77; /* of no account */
		CHECK_OK(engram_segment_compare(h, &spec, &err));
		want = change(i, &spec);
		if (!want)
			break;
		CHECK(engram_segment_compare(h, &spec, &err) ==
		      ENGRAM_ESOURCECHANGED);
		CHECK_STR(err.message, want);
	}
	engram_segment_discard(w);
}

int main(void)
{
	snprintf(instance, sizeof(instance), "adopt-%d", (int)getpid());
	taken_over();
	of_another();
	compared();
	CHECK(count_names("/dev/shm", instance) == 0);
	return 0;
}
