/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a reader says of a segment that is not what it should be, and which
 * rows it maps of one that is.  Damage is written to a copy of a good one.
 */
#include <fcntl.h>
#include <sys/mman.h>

#include "segment.h"
#include "segment_fixture.h"

static char instance[64];
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

#define FIELD(name)                                   \
	offsetof(struct engram_segment_header, name), \
		sizeof(((struct engram_segment_header *)0)->name)
#define COUNT(name)  FIELD(name.count)
#define OFFSET(name) FIELD(name.offset)
/* Where the blocks of the fixture lie. */
#define PRIME(i)      488 + 8 * (i), 8
#define COL_OFFSET(i) 520 + 8 * (i), 8

static const struct {
	size_t at, size;
	uint64_t value;
	enum engram_status status;
	const char *message;
} damages[] = {
	{FIELD(magic), 1, ENGRAM_EDAMAGED,
	 "magic 0x0000000000000001: not a segment of engramd"},
	{FIELD(magic), 0, ENGRAM_ENOTREADY,
	 "the segment is still being written"},
	{FIELD(abi_version), 0, ENGRAM_ENOTREADY,
	 "the segment is still being written"},
	{FIELD(abi_version), 2, ENGRAM_EVERSION,
	 "the segment has ABI version 2, this program reads 1"},
	{FIELD(state), ENGRAM_SEGMENT_FILLING, ENGRAM_ENOTREADY,
	 "the segment is still being written"},
	{FIELD(state), 7, ENGRAM_EDAMAGED, "state 7 is unknown"},
	/* sizes */
	{FIELD(data_offset), 0, ENGRAM_EDAMAGED,
	 "data_offset is 0 in a segment of 4194304 bytes"},
	{FIELD(data_offset), 4096, ENGRAM_EDAMAGED,
	 "data_offset is 4096 in a segment of 4194304 bytes"},
	{FIELD(data_offset), 6291456, ENGRAM_EDAMAGED,
	 "data_offset is 6291456 in a segment of 4194304 bytes"},
	{FIELD(data_offset), 4194304, ENGRAM_EDAMAGED,
	 "codes_offset is 2097152, but follows from the geometry as 4194304"},
	{FIELD(total_bytes), 4194305, ENGRAM_ETOOSHORT,
	 "the file has 4194304 bytes of 4194305"},
	{FIELD(total_bytes), UINT64_MAX, ENGRAM_ETOOSHORT,
	 "the file has 4194304 bytes of 18446744073709551615"},
	{FIELD(total_bytes), 2097152, ENGRAM_EDAMAGED,
	 "total_bytes is 2097152, but the records end at 4194304"},
	{FIELD(code_stride), 64, ENGRAM_EDAMAGED,
	 "code_stride is 64, but follows from the geometry as 66"},
	{FIELD(scale_stride), 0, ENGRAM_EDAMAGED,
	 "scale_stride is 0, but follows from the geometry as 66"},
	{FIELD(codes_offset), 0, ENGRAM_EDAMAGED,
	 "codes_offset is 0, but follows from the geometry as 2097152"},
	{FIELD(scales_offset), UINT64_MAX, ENGRAM_EDAMAGED,
	 "scales_offset is 18446744073709551615, but follows from the "
	 "geometry as 2097216"},
	{FIELD(data_bytes), 3301, ENGRAM_EDAMAGED,
	 "data_bytes is 3301, but follows from the geometry as 3300"},
	{FIELD(rows), UINT64_C(1) << 62, ENGRAM_EDAMAGED,
	 "4611686018427387904 rows of 66 bytes overflow"},
	{FIELD(rows), 51, ENGRAM_EDAMAGED,
	 "data_bytes is 3300, but follows from the geometry as 3366"},
	{FIELD(chunk_rows), 0, ENGRAM_EDAMAGED,
	 "chunk_rows is 0, but follows from the geometry as 1016800"},
	{FIELD(chunk_rows), 25, ENGRAM_EDAMAGED,
	 "chunk_rows is 25, but follows from the geometry as 1016800"},
	{FIELD(chunk_rows), UINT64_MAX, ENGRAM_EDAMAGED,
	 "chunk_rows is 18446744073709551615, but follows from the geometry "
	 "as 1016800"},
	/* what a row is */
	{FIELD(record_layout), 3, ENGRAM_EDAMAGED,
	 "record layout 3: must be 1 (packed) or 2 (split)"},
	{FIELD(dtype), 9, ENGRAM_EDAMAGED,
	 "dtype 9: must be 1 (fp8 e4m3) or 2 (bf16)"},
	{FIELD(scale_scheme), 3, ENGRAM_EDAMAGED,
	 "scale scheme 3: must be 0, 1 or 2"},
	{FIELD(dim), 0, ENGRAM_EDAMAGED, "dim 0: must be 1..65536"},
	{FIELD(dim), 65568, ENGRAM_EDAMAGED, "dim 65568: must be 1..65536"},
	{FIELD(block_size), 0, ENGRAM_EDAMAGED,
	 "block size 0 does not divide dim 64"},
	{FIELD(block_size), 48, ENGRAM_EDAMAGED,
	 "block size 48 does not divide dim 64"},
	{FIELD(tensor_scale), 0, ENGRAM_EDAMAGED,
	 "tensor scale 0: must be positive"},
	{FIELD(tensor_scale), 0x7f800000, ENGRAM_EDAMAGED,
	 "tensor scale inf: must be positive"},
	{FIELD(tensor_scale), 0x7fc00000, ENGRAM_EDAMAGED,
	 "tensor scale nan: must be positive"},
	/* whose it is */
	{FIELD(generation), 0, ENGRAM_EDAMAGED,
	 "generation 0: they count from 1"},
	{FIELD(layer_id), UINT32_MAX, ENGRAM_EDAMAGED,
	 "layer id -1 is negative"},
	{FIELD(instance[0]), '.', ENGRAM_EDAMAGED, NULL},
	{FIELD(instance[0]), 0, ENGRAM_EDAMAGED, "\"\" is no instance name"},
	{FIELD(table[0]), '.', ENGRAM_EDAMAGED,
	 "\".eepseek-v4.1-flash\" is no table name"},
	{FIELD(table[1]), '/', ENGRAM_EDAMAGED,
	 "\"d/epseek-v4.1-flash\" is no table name"},
	/* n-grams */
	{FIELD(min_ngram), 0, ENGRAM_EDAMAGED,
	 "n-grams of 0..3: must be within 1..16"},
	{FIELD(min_ngram), 4, ENGRAM_EDAMAGED,
	 "n-grams of 4..3: must be within 1..16"},
	{FIELD(max_ngram), 17, ENGRAM_EDAMAGED,
	 "n-grams of 2..17: must be within 1..16"},
	{FIELD(num_heads), 0, ENGRAM_EDAMAGED, "0 heads: must be 1..256"},
	{FIELD(num_heads), 257, ENGRAM_EDAMAGED, "257 heads: must be 1..256"},
	{FIELD(num_cols), 5, ENGRAM_EDAMAGED,
	 "5 columns, but 2 n-gram sizes of 2 heads"},
	/* blocks */
	{COUNT(primes), 3, ENGRAM_EDAMAGED,
	 "primes: 3 elements where 4 belong"},
	{COUNT(offsets), 5, ENGRAM_EDAMAGED,
	 "offsets: 5 elements where 4 belong"},
	{COUNT(multipliers), 0, ENGRAM_EDAMAGED,
	 "multipliers: 0 elements where 3 belong"},
	{COUNT(checksums), UINT64_MAX, ENGRAM_EDAMAGED,
	 "checksums: 18446744073709551615 elements where 1 belong"},
	{COUNT(token_map), UINT64_MAX, ENGRAM_EDAMAGED,
	 "token map: 18446744073709551615 elements at 576 do not fit a header "
	 "of 2097152 bytes"},
	{COUNT(token_map), 7, ENGRAM_EDAMAGED,
	 "checksums: offset 600 lies in what comes before it"},
	{COUNT(sources), 9360, ENGRAM_EDAMAGED,
	 "sources: 9360 elements at 608 do not fit a header of 2097152 bytes"},
	{OFFSET(primes), 489, ENGRAM_EDAMAGED,
	 "primes: offset 489 is not a multiple of 8"},
	{OFFSET(primes), 480, ENGRAM_EDAMAGED,
	 "primes: offset 480 lies in what comes before it"},
	{OFFSET(offsets), 512, ENGRAM_EDAMAGED,
	 "offsets: offset 512 lies in what comes before it"},
	{OFFSET(sources), 2097152, ENGRAM_EDAMAGED,
	 "sources: 1 elements at 2097152 do not fit a header of 2097152 bytes"},
	{OFFSET(checksums), UINT64_MAX - 7, ENGRAM_EDAMAGED,
	 "checksums: 1 elements at 18446744073709551608 do not fit a header of "
	 "2097152 bytes"},
	/* columns */
	{PRIME(0), 0, ENGRAM_EDAMAGED, "prime 0 is 0: must be positive"},
	{PRIME(2), (uint64_t)-13, ENGRAM_EDAMAGED,
	 "prime 2 is -13: must be positive"},
	{PRIME(1), INT64_MAX, ENGRAM_EDAMAGED,
	 "50 rows, but the primes add up to at least 9223372036854775814"},
	{PRIME(3), 18, ENGRAM_EDAMAGED, "50 rows, but the primes add up to 49"},
	{COL_OFFSET(1), 8, ENGRAM_EDAMAGED,
	 "offset 1 is 8, but the primes before it add up to 7"},
	{COL_OFFSET(0), (uint64_t)-1, ENGRAM_EDAMAGED,
	 "offset 0 is -1, but the primes before it add up to 0"},
};

static void test_table(struct copy *c)
{
	char text[128];
	size_t i;

	for (i = 0; i < sizeof(damages) / sizeof(damages[0]); i++) {
		const char *message = damages[i].message;

		memcpy(c->base + damages[i].at, &damages[i].value,
		       damages[i].size);
		sign(c);
		snprintf(text, sizeof(text), "\"%s\" is no instance name",
			 header(c)->instance);
		refused(c, damages[i].status, message ? message : text);
		restore(c);
	}
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

	fixture_instance(instance, "damage");
	copy_open(&packed, ENGRAM_PACKED);
	copy_open(&split, ENGRAM_SPLIT);
	test_table(&packed);
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
