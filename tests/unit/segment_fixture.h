/* SPDX-License-Identifier: Apache-2.0 */
/* A small segment to test with, and counts of what a test may leave. */
#ifndef SEGMENT_FIXTURE_H
#define SEGMENT_FIXTURE_H

#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

#include "engram_segment.h"

#define CHECK(cond)                                                        \
	do {                                                               \
		if (!(cond)) {                                             \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, \
				#cond);                                    \
			exit(1);                                           \
		}                                                          \
	} while (0)

#define CHECK_STR(a, b)                                                       \
	do {                                                                  \
		const char *a_ = (a), *b_ = (b);                              \
		if (strcmp(a_, b_)) {                                         \
			fprintf(stderr, "%s:%d: \"%s\"\n  expected \"%s\"\n", \
				__FILE__, __LINE__, a_, b_);                  \
			exit(1);                                              \
		}                                                             \
	} while (0)

#define CHECK_OK(call)                                                         \
	do {                                                                   \
		if (call) {                                                    \
			fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, \
				#call, err.message);                           \
			exit(1);                                               \
		}                                                              \
	} while (0)

#define FIXTURE_ROWS 50u

static const int64_t fixture_primes[4] = {7, 11, 13, 19};
static const int64_t fixture_offsets[4] = {0, 7, 18, 31};
static const int64_t fixture_multipliers[3] = {3, 5, 9};
static const int32_t fixture_token_map[5] = {0, 1, 2, 2, 1};
static const struct engram_segment_source fixture_source = {
	.name = "model-00001-of-00001.safetensors",
	.size = 4242,
	.mtime_ns = 1,
	.header_hash = 2,
	.inode = 3};

static inline struct engram_segment_spec fixture_spec(const char *instance,
						      uint32_t layout)
{
	struct engram_segment_spec spec = {.instance = instance,
					   .table = "deepseek-v4.1-flash",
					   .generation = 3,
					   .primes = fixture_primes,
					   .offsets = fixture_offsets,
					   .multipliers = fixture_multipliers,
					   .token_map = fixture_token_map,
					   .token_map_len = 5,
					   .sources = &fixture_source,
					   .num_sources = 1};

	spec.head.layer_id = 14;
	spec.head.layer_index = 1;
	spec.head.record_layout = layout;
	spec.head.dtype = ENGRAM_F8_E4M3;
	spec.head.scale_scheme = ENGRAM_SCALE_UE8M0_BLOCK;
	spec.head.dim = 64;
	spec.head.block_size = 32;
	spec.head.rows = FIXTURE_ROWS;
	spec.head.min_ngram = 2;
	spec.head.max_ngram = 3;
	spec.head.num_heads = 2;
	spec.head.num_cols = 4;
	spec.head.pad_id = 2;
	spec.head.raw_pad_id = 3;
	spec.head.compressed_vocab_size = 3;
	spec.head.prime_seed = 8;
	return spec;
}

static inline uint8_t fixture_byte(uint64_t row, uint64_t i)
{
	return (uint8_t)(row * 131 + i * 7 + 1);
}

/* Write all rows and checksums as a loader does. */
static inline void fixture_fill(struct engram_segment_writer *w)
{
	struct engram_segment_header *h = engram_segment_writer_header(w);
	uint8_t *base = engram_segment_writer_base(w);
	uint64_t record = engram_segment_record_bytes(h), r, i, c;
	uint64_t code_bytes = record - h->dim / h->block_size;
	uint8_t *packed = malloc(h->rows * record);

	CHECK(packed);
	for (r = 0; r < h->rows; r++)
		for (i = 0; i < record; i++) {
			uint8_t b = fixture_byte(r, i);

			packed[r * record + i] = b;
			if (i < code_bytes)
				base[h->codes_offset + r * h->code_stride + i] =
					b;
			else
				base[h->scales_offset + r * h->scale_stride +
				     i - code_bytes] = b;
		}
	for (c = 0; c < h->checksums.count; c++) {
		uint64_t begin = c * h->chunk_rows, end = begin + h->chunk_rows;

		if (end > h->rows)
			end = h->rows;
		engram_segment_writer_checksums(w)[c] = XXH3_64bits(
			packed + begin * record, (end - begin) * record);
	}
	free(packed);
}

/* Names in `dir` that contain `text`; "" is in all. */
static inline int count_names(const char *dir, const char *text)
{
	DIR *d = opendir(dir);
	struct dirent *e;
	int n = 0;

	CHECK(d);
	while ((e = readdir(d)))
		n += strstr(e->d_name, text) != NULL;
	closedir(d);
	return n;
}

static inline int count_fds(void)
{
	return count_names("/proc/self/fd", "");
}

static inline void fixture_instance(char out[64], const char *test)
{
	snprintf(out, 64, "t-%s-%d", test, (int)getpid());
}

static inline struct engram_backing fixture_shm(void)
{
	return (struct engram_backing){.kind = ENGRAM_BACKING_SHM,
				       .dir = "/dev/shm"};
}

#endif
