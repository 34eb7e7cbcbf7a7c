/* SPDX-License-Identifier: Apache-2.0 */
/* Raw files with tensors at any offset, and a segment to load them into. */
#ifndef LOADER_FIXTURE_H
#define LOADER_FIXTURE_H

#include <fcntl.h>
#include <sys/stat.h>

#include "loader.h"
#include "segment_fixture.h"

struct loader_case {
	uint64_t rows, dim;
	uint32_t dtype, scheme, layout;
	uint64_t codes_at, scales_at; /* scales_at: behind the codes, if in
				       * the same file */
	bool two_files;
	char dir[64], paths[2][96];
	struct checkpoint_file files[2];
	struct checkpoint_layer layer;
	struct checkpoint checkpoint;
	uint32_t layer_files[2];
	uint8_t *codes, *scales; /* what the files hold */
	struct engram_segment_writer *writer;
};

/* Three chunks, the last of 17 rows. */
#define LOADER_CASE_CHUNKS                                                    \
	{                                                                     \
		.rows = 2 * 63550 + 17, .dim = 1024, .dtype = ENGRAM_F8_E4M3, \
		.scheme = ENGRAM_SCALE_UE8M0_BLOCK, .codes_at = 664,          \
		.scales_at = 3, .layout = ENGRAM_PACKED,                      \
	}

static inline uint8_t *loader_random(uint64_t bytes, uint64_t seed)
{
	uint8_t *p = malloc(bytes + 8);
	uint64_t i;

	CHECK(p);
	for (i = 0; i < bytes; i += 8) {
		seed = seed * UINT64_C(6364136223846793005) +
		       1442695040888963407;
		memcpy(p + i, &seed, 8);
	}
	return p;
}

static inline void loader_put(const char *path, const void *data,
			      uint64_t bytes, uint64_t at)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

	CHECK(fd >= 0);
	CHECK(pwrite(fd, data, bytes, (off_t)at) == (ssize_t)bytes);
	close(fd);
}

static inline void loader_identity(struct checkpoint_file *file, char *path)
{
	struct stat st;

	CHECK(!stat(path, &st));
	file->path = file->name = path;
	file->identity.size = (uint64_t)st.st_size;
	file->identity.inode = st.st_ino;
	file->identity.mtime_ns =
		st.st_mtim.tv_sec * INT64_C(1000000000) + st.st_mtim.tv_nsec;
}

static inline void loader_case_files(struct loader_case *c)
{
	const uint64_t code_bytes = c->dim * (c->dtype == ENGRAM_BF16 ? 2 : 1);
	const uint64_t scale_bytes =
		c->scheme == ENGRAM_SCALE_UE8M0_BLOCK ? c->dim / 32 : 0;
	struct checkpoint_tensor *w = &c->layer.weight, *s = &c->layer.scale;

	/* On a disk, where direct reads exist; not in a tmpfs. */
	strcpy(c->dir, "/var/tmp/test-loader-XXXXXX");
	CHECK(mkdtemp(c->dir));
	snprintf(c->paths[0], sizeof(c->paths[0]), "%s/a", c->dir);
	snprintf(c->paths[1], sizeof(c->paths[1]), "%s/b", c->dir);
	w->offset = c->codes_at;
	w->bytes = c->rows * code_bytes;
	s->file = c->two_files ? 1 : 0;
	s->offset = c->scales_at + (c->two_files ? 0 : w->offset + w->bytes);
	s->bytes = c->rows * scale_bytes;
	c->codes = loader_random(w->bytes, 1);
	c->scales = loader_random(s->bytes, 2);
	loader_put(c->paths[0], c->codes, w->bytes, w->offset);
	loader_identity(&c->files[0], c->paths[0]);
	if (scale_bytes) {
		loader_put(c->paths[s->file], c->scales, s->bytes, s->offset);
		loader_identity(&c->files[s->file], c->paths[s->file]);
	}
	c->layer.layer_id = 14;
	c->layer.rows = c->rows;
	c->layer_files[0] = 0;
	c->layer_files[1] = 1;
	c->layer.files = c->layer_files;
	c->layer.num_files = c->two_files && scale_bytes ? 2 : 1;
	c->checkpoint.files = c->files;
	c->checkpoint.num_files = c->layer.num_files;
}

static inline void loader_case_segment(struct loader_case *c,
				       const char *instance)
{
	struct engram_segment_spec spec = fixture_spec(instance, c->layout);
	struct engram_backing backing = fixture_shm();
	int64_t primes[4] = {1, 1, 1, (int64_t)c->rows - 3};
	int64_t offsets[4] = {0, 1, 2, 3};
	struct engram_error err;

	spec.primes = primes;
	spec.offsets = offsets;
	spec.head.dim = (uint32_t)c->dim;
	spec.head.rows = c->rows;
	spec.head.dtype = c->dtype;
	spec.head.scale_scheme = c->scheme;
	spec.head.tensor_scale = 1;
	CHECK_OK(engram_segment_create(&backing, &spec, &c->writer, &err));
}

static inline enum engram_status loader_case_fill(
	struct loader_case *c, const struct loader_options *options,
	struct loader_progress *progress, struct loader_report *report,
	struct engram_error *err)
{
	const struct loader_layer layer = {.layer = &c->layer,
					   .writer = c->writer};

	return loader_fill(&c->checkpoint, &layer, 1, options, progress, report,
			   err);
}

static inline void loader_case_check(struct loader_case *c)
{
	const struct engram_segment_header *h =
		engram_segment_writer_header(c->writer);
	const uint8_t *base = engram_segment_writer_base(c->writer);
	const uint64_t codes = c->layer.weight.bytes / c->rows;
	const uint64_t scales = c->layer.scale.bytes / c->rows;
	uint64_t r;

	for (r = 0; r < c->rows; r++) {
		CHECK(!memcmp(base + h->codes_offset + r * h->code_stride,
			      c->codes + r * codes, codes));
		CHECK(!memcmp(base + h->scales_offset + r * h->scale_stride,
			      c->scales + r * scales, scales));
	}
}

static inline void loader_case_free(struct loader_case *c)
{
	unlink(c->paths[0]);
	unlink(c->paths[1]);
	rmdir(c->dir);
	free(c->codes);
	free(c->scales);
	engram_segment_discard(c->writer);
	memset(c, 0, sizeof(*c));
}

#endif
