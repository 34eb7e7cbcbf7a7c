/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a reader says of a segment that is not what it should be, and which
 * rows it maps of one that is.  Damage is written to a copy of a good one.
 */
#include <fcntl.h>
#include <sys/mman.h>

#include "segment.h"
#include "segment_fixture.h"

/* From the top of the tree, where tests run. */
#define CASES "tests/bad/segment"

/* In memfds, so that nobody else can have it. */
static const char instance[] = "damaged";
static struct engram_error err;

/* A good segment, and the copy that is damaged. */
struct copy {
	int fd;
	char *base;
	uint64_t bytes;
	char *good; /* the header region as it was */
};

static struct engram_segment_header *header(const struct copy *c)
{
	return (struct engram_segment_header *)c->base;
}

static struct engram_segment_writer *make(uint32_t layout)
{
	struct engram_backing memfd = {.kind = ENGRAM_BACKING_MEMFD};
	struct engram_segment_spec spec = fixture_spec(instance, layout);
	const struct engram_segment_header *h;
	struct engram_segment_writer *w;

	CHECK_OK(engram_segment_create(&memfd, &spec, &w, &err));
	h = engram_segment_writer_header(w);
	CHECK_OK(engram_segment_reserve(w, 0, h->total_bytes, &err));
	fixture_fill(w);
	CHECK_OK(engram_segment_publish(w, &err));
	return w;
}

static void copy_open(struct copy *c, uint32_t layout)
{
	struct engram_segment_writer *w = make(layout);

	c->bytes = engram_segment_writer_header(w)->total_bytes;
	c->fd = memfd_create("damaged", MFD_CLOEXEC);
	CHECK(c->fd >= 0 && !ftruncate(c->fd, (off_t)c->bytes));
	c->base = mmap(NULL, c->bytes, PROT_READ | PROT_WRITE, MAP_SHARED,
		       c->fd, 0);
	CHECK(c->base != MAP_FAILED);
	memcpy(c->base, engram_segment_writer_base(w), c->bytes);
	c->good = malloc(header(c)->data_offset);
	CHECK(c->good);
	memcpy(c->good, c->base, header(c)->data_offset);
	engram_segment_discard(w);
}

static void copy_close(struct copy *c)
{
	munmap(c->base, c->bytes);
	close(c->fd);
	free(c->good);
}

static void restore(struct copy *c)
{
	const struct engram_segment_header *h = (const void *)c->good;

	memcpy(c->base, c->good, h->data_offset);
}

/* As a faulty writer would: the checksum is right, the header is not. */
static void sign(struct copy *c)
{
	struct engram_segment_header *h = header(c);

	if (h->data_offset >= sizeof(*h) && h->data_offset <= c->bytes)
		h->header_checksum = segment_header_checksum(h, h);
}

static void refused(const struct copy *c, enum engram_status status,
		    const char *message)
{
	struct engram_segment_map map;
	char want[512];

	memset(&err, 0, sizeof(err));
	engram_segment_map_fd(c->fd, 0, UINT64_MAX, &map, &err);
	snprintf(want, sizeof(want), "map segment: %s", message);
	CHECK_STR(err.message, want);
	CHECK(err.status == status && *err.fix);
	CHECK(!map.header && !map.codes && !map.data_map[0]);
}

static void read_text(const char *dir, const char *name, char *out, size_t size)
{
	char path[512];
	FILE *f;

	snprintf(path, sizeof(path), CASES "/%s/%s", dir, name);
	f = fopen(path, "re");
	CHECK(f);
	out[fread(out, 1, size - 1, f)] = '\0';
	fclose(f);
}

/* `damage`: lines of an offset, a number of bytes and a value, and comments. */
static void apply(struct copy *c, char *text)
{
	unsigned long long at, size, value;
	char *line, *rest = text;
	int n = 0;

	while ((line = strsep(&rest, "\n"))) {
		if (!*line || *line == '#')
			continue;
		CHECK(sscanf(line, "%llu %llu 0x%llx", &at, &size, &value) ==
		      3);
		CHECK(size <= 8 && at + size <= c->bytes);
		memcpy(c->base + at, &value, size);
		n++;
	}
	CHECK(n);
}

/* Each folder is a damage and the error that it must give. */
static void test_cases(struct copy *c)
{
	char damage[1024], expected[1024], got[1400];
	struct engram_segment_map map;
	struct dirent *entry;
	DIR *dir = opendir(CASES);
	int n = 0;

	CHECK(dir);
	while ((entry = readdir(dir))) {
		if (entry->d_name[0] == '.')
			continue;
		read_text(entry->d_name, "damage", damage, sizeof(damage));
		read_text(entry->d_name, "expected", expected,
			  sizeof(expected));
		apply(c, damage);
		sign(c);
		memset(&err, 0, sizeof(err));
		engram_segment_map_fd(c->fd, 0, UINT64_MAX, &map, &err);
		CHECK(!map.header && !map.codes && !map.data_map[0]);
		snprintf(got, sizeof(got), "status: %s\nmessage: %s\nfix: %s\n",
			 engram_status_name(err.status), err.message, err.fix);
		CHECK_STR(got, expected);
		restore(c);
		n++;
	}
	closedir(dir);
	CHECK(n >= 60);
}

static void test_strings(struct copy *c)
{
	struct engram_segment_header *h = header(c);

	memset(h->instance, 'a', sizeof(h->instance));
	sign(c);
	refused(c, ENGRAM_EDAMAGED, "the instance name has no end");
	restore(c);
	memset(h->table, 'a', sizeof(h->table));
	sign(c);
	refused(c, ENGRAM_EDAMAGED, "the table name has no end");
	restore(c);
}

static void test_checksum(struct copy *c)
{
	struct engram_segment_header *h = header(c);
	char text[128];

	h->generation++;
	snprintf(text, sizeof(text),
		 "header checksum %016llx, the header says %016llx",
		 (unsigned long long)segment_header_checksum(h, h),
		 (unsigned long long)h->header_checksum);
	refused(c, ENGRAM_EDAMAGED, text);
	restore(c);
	/* A byte that no block has, at the end of the region. */
	c->base[h->data_offset - 1] = 1;
	CHECK(segment_header_checksum(h, h) != h->header_checksum);
	snprintf(text, sizeof(text),
		 "header checksum %016llx, the header says %016llx",
		 (unsigned long long)segment_header_checksum(h, h),
		 (unsigned long long)h->header_checksum);
	refused(c, ENGRAM_EDAMAGED, text);
	restore(c);
}

/* No byte of the header and its blocks can change unnoticed. */
static void test_flips(struct copy *c)
{
	const struct engram_segment_header *h = header(c);
	const uint64_t end =
		h->sources.offset + sizeof(struct engram_segment_source);
	struct engram_segment_map map;
	uint64_t at;
	int bit;

	for (at = 0; at < end; at++)
		for (bit = 0; bit < 2; bit++) {
			const char was = c->base[at];

			c->base[at] = (char)(was ^ (bit ? 0xff : 1));
			CHECK(engram_segment_map_fd(c->fd, 0, UINT64_MAX, &map,
						    &err));
			CHECK(*err.message && *err.fix && !map.header);
			c->base[at] = was;
		}
	CHECK_OK(engram_segment_map_fd(c->fd, 0, UINT64_MAX, &map, &err));
	engram_segment_unmap(&map);
}

static void test_short_files(struct copy *c)
{
	static const off_t sizes[] = {0, 487, 488, 2097152, 4194303};
	char text[128];
	size_t i;

	for (i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		const uint64_t needed = sizes[i] < 488 ? 488 : 4194304;
		struct copy cut = {.fd = memfd_create("cut", MFD_CLOEXEC)};

		CHECK(cut.fd >= 0);
		CHECK(write(cut.fd, c->base, (size_t)sizes[i]) == sizes[i]);
		snprintf(text, sizeof(text), "the file has %llu bytes of %llu",
			 (unsigned long long)sizes[i],
			 (unsigned long long)needed);
		refused(&cut, ENGRAM_ETOOSHORT, text);
		CHECK(err.needed == needed &&
		      err.available == (uint64_t)sizes[i]);
		CHECK_STR(err.fix, "unload the table and load it again");
		close(cut.fd);
	}
}

static void test_no_file(void)
{
	struct copy c = {.fd = -1};
	int ends[2];

	refused(&c, ENGRAM_ESYS, "fstat: Bad file descriptor");
	CHECK(!pipe(ends));
	c.fd = ends[0];
	refused(&c, ENGRAM_EDAMAGED, "the descriptor is not of a file");
	close(ends[0]);
	close(ends[1]);
}

/* Every byte of the records counts; the error names the chunk's rows. */
static void test_chunks(struct copy *c)
{
	const struct engram_segment_header *h = header(c);
	const uint64_t at[] = {h->codes_offset, h->scales_offset,
			       h->codes_offset + 49 * h->code_stride,
			       h->scales_offset + 49 * h->scale_stride};
	struct engram_segment_map map;
	uint64_t bad;
	size_t i;

	CHECK_OK(engram_segment_map_fd(c->fd, 0, UINT64_MAX, &map, &err));
	for (i = 0; i < 4; i++) {
		c->base[at[i]] ^= 0x40;
		bad = 99;
		CHECK(engram_segment_verify(&map, 0, 50, &bad, &err) ==
		      ENGRAM_ECHECKSUM);
		CHECK(bad == 0 && *err.fix);
		CHECK(strstr(err.message, "table \"deepseek-v4.1-flash\" layer "
					  "14: rows 0..50 have checksum "));
		c->base[at[i]] ^= 0x40;
	}
	CHECK_OK(engram_segment_verify(&map, 0, 50, &bad, &err));
	/* Nothing to verify; rows that no chunk ends at; rows not mapped. */
	CHECK_OK(engram_segment_verify(&map, 50, 50, &bad, &err));
	CHECK(engram_segment_verify(&map, 0, 49, &bad, &err) == ENGRAM_EINVAL);
	CHECK(engram_segment_verify(&map, 1, 50, &bad, &err) == ENGRAM_EINVAL);
	CHECK(engram_segment_verify(&map, 0, 51, &bad, &err) == ENGRAM_EINVAL);
	engram_segment_unmap(&map);
}

static void check_bytes(const struct engram_segment_map *map)
{
	const struct engram_segment_header *h = map->header;
	uint64_t r, i;

	for (r = map->row_begin; r < map->row_end; r++) {
		const uint64_t n = r - map->row_begin;
		const uint8_t *codes =
			(const uint8_t *)map->codes + n * h->code_stride;
		const uint8_t *scales =
			(const uint8_t *)map->scales + n * h->scale_stride;

		for (i = 0; i < 64; i++)
			CHECK(codes[i] == fixture_byte(r, i));
		for (i = 0; i < 2; i++)
			CHECK(scales[i] == fixture_byte(r, 64 + i));
	}
}

/* Every range there is; the slices of ranks are among them. */
static void test_ranges(struct copy *c)
{
	struct engram_segment_map map;
	uint64_t begin, end;
	char want[128];

	for (begin = 0; begin <= 50; begin += 7)
		for (end = begin; end <= 50; end++) {
			CHECK_OK(engram_segment_map_fd(c->fd, begin, end, &map,
						       &err));
			CHECK(map.row_begin == begin && map.row_end == end);
			CHECK((begin == end) == !map.codes);
			check_bytes(&map);
			engram_segment_unmap(&map);
			CHECK(!map.header);
		}
	for (begin = 0; begin <= 51; begin += 51) {
		end = begin ? 50 : 51;
		CHECK(engram_segment_map_fd(c->fd, begin, end, &map, &err) ==
		      ENGRAM_EINVAL);
		snprintf(want, sizeof(want),
			 "map segment: rows %d..%d of a segment of 50",
			 (int)begin, (int)end);
		CHECK_STR(err.message, want);
		CHECK_STR(err.fix, "ask for rows that it has");
	}
	CHECK(engram_segment_map_fd(c->fd, 51, UINT64_MAX, &map, &err) ==
	      ENGRAM_EINVAL);
	CHECK_OK(engram_segment_map_fd(c->fd, 50, UINT64_MAX, &map, &err));
	engram_segment_unmap(&map);
}

int main(void)
{
	struct copy packed, split;
	int fds = count_fds();

	copy_open(&packed, ENGRAM_PACKED);
	copy_open(&split, ENGRAM_SPLIT);
	test_cases(&packed);
	test_strings(&packed);
	test_checksum(&packed);
	test_flips(&packed);
	test_short_files(&packed);
	test_no_file();
	test_chunks(&packed);
	test_chunks(&split);
	test_ranges(&packed);
	test_ranges(&split);
	copy_close(&packed);
	copy_close(&split);
	CHECK(count_fds() == fds);
	return 0;
}
