/* SPDX-License-Identifier: Apache-2.0 */
/* The next generation in a published segment's own memory. */
#include <sys/stat.h>

#include "segment_fixture.h"

static char instance[64];
static const struct engram_backing shm = {.kind = ENGRAM_BACKING_SHM,
					  .dir = "/dev/shm"};
static struct engram_error err;

static struct engram_segment_writer *published(void)
{
	struct engram_segment_spec spec = fixture_spec(instance, ENGRAM_PACKED);
	struct engram_segment_writer *w;

	CHECK_OK(engram_segment_create(&shm, &spec, &w, &err));
	CHECK_OK(engram_segment_reserve(
		w, 0, engram_segment_writer_header(w)->total_bytes, &err));
	fixture_fill(w);
	CHECK_OK(engram_segment_publish(w, &err));
	return w;
}

static uint64_t inode_of(const char *name)
{
	char path[512];
	struct stat st;

	snprintf(path, sizeof(path), "/dev/shm/%s", name);
	CHECK(!stat(path, &st));
	return st.st_ino;
}

/* The header that was checked when the segment was mapped. */
static void check_header_of(const struct engram_segment_map *map,
			    uint64_t generation)
{
	const struct engram_segment_spec spec =
		fixture_spec(instance, ENGRAM_PACKED);
	const struct engram_segment_header *h = map->header;

	CHECK(h->state == ENGRAM_SEGMENT_READY && h->generation == generation);
	CHECK(h->rows == FIXTURE_ROWS);
	CHECK(!memcmp(engram_segment_at(h, &h->primes), spec.primes,
		      h->num_cols * sizeof(int64_t)));
	CHECK(!memcmp(engram_segment_at(h, &h->multipliers), spec.multipliers,
		      h->max_ngram * sizeof(int64_t)));
}

/* Who has it mapped sees the rows of the next generation, without mapping
 * anew; nobody can map or adopt what is in between. */
static void overwrite(struct engram_segment_writer *w)
{
	struct engram_segment_spec spec = fixture_spec(instance, ENGRAM_PACKED);
	static const int64_t multipliers[3] = {7, 9, 11};
	struct engram_segment_writer *adopted;
	struct engram_segment_map map, again;
	char was[256], is[256];
	uint64_t inode, bad;
	int fd;

	engram_segment_name(was, instance, spec.table, 14, 3);
	inode = inode_of(was);
	CHECK_OK(engram_segment_reopen(w, &fd, &err));
	CHECK_OK(engram_segment_map_fd(fd, 0, UINT64_MAX, &map, &err));
	spec.generation = 4;
	spec.multipliers = multipliers;
	engram_segment_name(is, instance, spec.table, 14, 4);
	CHECK_OK(engram_segment_check_overwrite(
		&shm, engram_segment_writer_header(w), &spec, &err));
	CHECK_OK(engram_segment_unprotect(w, &err));
	CHECK(map.header->state == ENGRAM_SEGMENT_READY);
	CHECK_OK(engram_segment_overwrite(w, &spec, &err));

	CHECK(engram_segment_map_fd(fd, 0, UINT64_MAX, &again, &err) ==
	      ENGRAM_ENOTREADY);
	CHECK(engram_segment_adopt(&shm, was, &adopted, &err) ==
	      ENGRAM_ENOTFOUND);
	CHECK(engram_segment_adopt(&shm, is, &adopted, &err) ==
	      ENGRAM_ENOTFOUND);
	CHECK(count_names("/dev/shm", instance) == 1);
	/* who maps it holds on to what it checked */
	check_header_of(&map, 3);

	CHECK_OK(engram_segment_reserve(w, 0, map.header->total_bytes, &err));
	fixture_fill(w);
	CHECK_OK(engram_segment_publish(w, &err));
	CHECK(inode_of(is) == inode && count_names("/dev/shm", instance) == 1);
	CHECK_OK(engram_segment_map_fd(fd, 0, UINT64_MAX, &again, &err));
	CHECK(again.header->generation == 4);
	CHECK(!memcmp(
		engram_segment_at(again.header, &again.header->multipliers),
		multipliers, sizeof(multipliers)));
	CHECK_OK(engram_segment_verify(&again, 0, FIXTURE_ROWS, &bad, &err));
	CHECK(!memcmp(map.codes, again.codes, map.header->data_bytes));
	close(fd);
	engram_segment_unmap(&again);
	engram_segment_unmap(&map);
}

static void of_ours(void)
{
	struct engram_segment_writer *w = published();

	overwrite(w);
	engram_segment_discard(w);
	CHECK(count_names("/dev/shm", instance) == 0);
}

/* Its own descriptor can not write. */
static void of_a_former_owner(void)
{
	struct engram_segment_writer *w = published();
	char name[256];

	engram_segment_leave(w);
	engram_segment_name(name, instance, "deepseek-v4.1-flash", 14, 3);
	CHECK_OK(engram_segment_adopt(&shm, name, &w, &err));
	overwrite(w);
	engram_segment_discard(w);
	CHECK(count_names("/dev/shm", instance) == 0);
}

/* One change each; NULL at the end. */
static const char *change(int which, struct engram_segment_spec *spec)
{
	static const int64_t more[4] = {7, 11, 13, 23};
	static const int64_t primes[4] = {11, 7, 13, 19};
	static const int64_t offsets[4] = {0, 11, 18, 31};

	switch (which) {
	case 0:
		spec->head.layer_id = 1;
		return "the layer id differs";
	case 1:
		spec->primes = more;
		spec->head.rows += 4;
		return "the number of rows differs";
	case 2:
		spec->head.record_layout = ENGRAM_SPLIT;
		return "the layout of a row differs";
	case 3:
		spec->head.block_size = 16;
		return "the layout of a row differs";
	case 4:
		spec->primes = primes;
		spec->offsets = offsets;
		return "the division into heads differs";
	case 5:
		spec->token_map_len = 4;
		return "the length of the token map differs";
	default:
		return NULL;
	}
}

static void refused(void)
{
	const struct engram_backing memfd = {.kind = ENGRAM_BACKING_MEMFD};
	struct engram_segment_writer *w = published();
	const struct engram_segment_header *h = engram_segment_writer_header(w);
	const char *want;

	for (int i = 0;; i++) {
		struct engram_segment_spec spec =
			fixture_spec(instance, ENGRAM_PACKED);

		CHECK_OK(engram_segment_check_overwrite(&shm, h, &spec, &err));
		CHECK(engram_segment_check_overwrite(&memfd, h, &spec, &err) ==
		      ENGRAM_EUNSUPPORTED);
		want = change(i, &spec);
		if (!want)
			break;
		CHECK(engram_segment_check_overwrite(&shm, h, &spec, &err) ==
		      ENGRAM_EGEOMETRY);
		if (!strstr(err.message, want)) {
			fprintf(stderr, "%d: %s\n", i, err.message);
			exit(1);
		}
	}
	engram_segment_discard(w);
}

int main(void)
{
	snprintf(instance, sizeof(instance), "overwrite-%d", (int)getpid());
	of_ours();
	of_a_former_owner();
	refused();
	CHECK(count_names("/dev/shm", instance) == 0);
	return 0;
}
