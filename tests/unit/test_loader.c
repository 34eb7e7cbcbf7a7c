/* SPDX-License-Identifier: Apache-2.0 */
/* Every byte of a segment is the source's, however it was read. */
#include "loader_fixture.h"

static char instance[64];
static struct engram_error err;

/* Load, compare, verify; the content id by `id`. */
static void load(struct loader_case *c, const struct loader_options *o,
		 uint64_t id[2])
{
	struct loader_progress progress = {0};
	struct loader_report report;
	struct engram_segment_map map;
	const struct engram_segment_header *h;
	int fds = count_fds(), fd;

	loader_case_segment(c, instance);
	CHECK_OK(loader_case_fill(c, o, &progress, &report, &err));
	h = engram_segment_writer_header(c->writer);
	CHECK(atomic_load(&progress.bytes_done) ==
	      c->rows * engram_segment_record_bytes(h));
	if (o->engine != LOADER_AUTO)
		CHECK(report.engine == o->engine);
	if (o->direct == LOADER_DIRECT_OFF)
		CHECK(!report.direct);
	loader_case_check(c);
	CHECK_OK(engram_segment_publish(c->writer, &err));
	CHECK_OK(engram_segment_reopen(c->writer, &fd, &err));
	CHECK_OK(engram_segment_map_fd(fd, 0, UINT64_MAX, &map, &err));
	close(fd);
	CHECK_OK(loader_verify(&map, 2, &progress, &progress.layers[0], &err));
	CHECK(atomic_load(&progress.bytes_verified) ==
	      atomic_load(&progress.bytes_done));
	memcpy(id, map.header->content_id, 16);
	engram_segment_unmap(&map);
	engram_segment_discard(c->writer);
	c->writer = NULL;
	CHECK(count_fds() == fds);
	CHECK(!count_names("/dev/shm", instance));
}

static const struct loader_options options[] = {
	{.engine = LOADER_AUTO,
	 .direct = LOADER_DIRECT_AUTO,
	 .threads = 0,
	 .queue_depth = 0,
	 .block_bytes = 0},
	{.engine = LOADER_PREADV,
	 .direct = LOADER_DIRECT_AUTO,
	 .threads = 1,
	 .queue_depth = 1,
	 .block_bytes = 4096},
	{.engine = LOADER_PREADV,
	 .direct = LOADER_DIRECT_OFF,
	 .threads = 3,
	 .queue_depth = 2,
	 .block_bytes = 65536},
	{.engine = LOADER_AUTO,
	 .direct = LOADER_DIRECT_OFF,
	 .threads = 2,
	 .queue_depth = 3,
	 .block_bytes = 4096},
	{.engine = LOADER_AUTO,
	 .direct = LOADER_DIRECT_AUTO,
	 .threads = 4,
	 .queue_depth = 1,
	 .block_bytes = 16},
	{.engine = LOADER_AUTO,
	 .direct = LOADER_DIRECT_AUTO,
	 .threads = 1,
	 .queue_depth = 16,
	 .block_bytes = 8192},
	{.engine = LOADER_AUTO,
	 .direct = LOADER_DIRECT_AUTO,
	 .threads = 2,
	 .queue_depth = 2,
	 .block_bytes = 4u << 20},
};

/* Every way to read gives the same bytes and the same id.  Layouts take turns,
 * so that each meets each offset and each way. */
static void load_all(struct loader_case *c, unsigned int turn)
{
	uint64_t want[2], id[2];
	unsigned int k;

	for (k = 0; k < sizeof(options) / sizeof(options[0]); k++) {
		c->layout = (turn + k) % 2 ? ENGRAM_SPLIT : ENGRAM_PACKED;
		load(c, &options[k], id);
		if (k)
			CHECK(!memcmp(id, want, 16));
		memcpy(want, id, 16);
	}
}

static void test_offsets(void)
{
	static const uint64_t at[] = {0, 1, 7, 264, 511, 512, 4095};
	static const uint64_t rows[] = {4, 127, 128, 1000};
	unsigned int i, n;

	for (i = 0; i < 7; i++)
		for (n = 0; n < 4; n++) {
			struct loader_case c = {
				.rows = rows[n],
				.dim = 32u << (i % 4),
				.dtype = i == 3 ? ENGRAM_BF16 : ENGRAM_F8_E4M3,
				.scheme = i == 4   ? ENGRAM_SCALE_NONE
					  : i == 5 ? ENGRAM_SCALE_TENSOR
						   : ENGRAM_SCALE_UE8M0_BLOCK,
				.codes_at = at[i],
				.scales_at = at[(i + n) % 7],
				.two_files = n % 2,
			};

			loader_case_files(&c);
			load_all(&c, i + n);
			loader_case_free(&c);
		}
}

static void bad_chunk(struct loader_case *c)
{
	struct loader_options o = {0};
	struct loader_progress progress = {0};
	struct loader_report report;
	struct engram_segment_map map;
	int fd;

	loader_case_segment(c, instance);
	CHECK_OK(loader_case_fill(c, &o, &progress, &report, &err));
	engram_segment_writer_checksums(c->writer)[1] ^= 1;
	CHECK_OK(engram_segment_publish(c->writer, &err));
	CHECK_OK(engram_segment_reopen(c->writer, &fd, &err));
	CHECK_OK(engram_segment_map_fd(fd, 0, UINT64_MAX, &map, &err));
	close(fd);
	CHECK(loader_verify(&map, 2, &progress, &progress.layers[0], &err) ==
	      ENGRAM_ECHECKSUM);
	CHECK(strstr(err.message, "chunk 1: "));
	CHECK(strstr(err.message, "rows 63550..127100 "));
	CHECK_STR(err.fix, "reload the table; if it recurs, suspect memory");
	atomic_store(&progress.cancel, true);
	CHECK(loader_verify(&map, 2, &progress, &progress.layers[0], &err) ==
	      ENGRAM_ECANCELED);
	engram_segment_unmap(&map);
}

/* Chunks enough for threads to share the work. */
static void test_chunks(void)
{
	struct loader_case c = LOADER_CASE_CHUNKS;
	struct loader_options o = {.threads = 3};
	uint64_t one[2], many[2];

	loader_case_files(&c);
	load(&c, &o, many);
	o.threads = 1;
	o.engine = LOADER_PREADV;
	c.layout = ENGRAM_SPLIT;
	load(&c, &o, one);
	CHECK(!memcmp(one, many, 16));
	bad_chunk(&c);
	loader_case_free(&c);
}

int main(void)
{
	fixture_instance(instance, "loader");
	test_offsets();
	test_chunks();
	return 0;
}
