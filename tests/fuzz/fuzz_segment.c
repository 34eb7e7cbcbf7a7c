/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any file as a segment: refused, or mapped such that everything that the
 * header points to can be read.
 *
 * The input is a list of 12-byte patches (place, 8 bytes) over a valid
 * segment, so that mutations get behind the magic; what remains sets the
 * file's length (bit 0 of the remainder) and makes the header checksum right
 * again (bit 1).
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "segment.h"
#include "segment_fixture.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define PATCHED (64u << 10) /* header, blocks and more */

static struct {
	int fd;
	uint8_t *image; /* shared, writable */
	uint8_t *good;	/* its first PATCHED bytes */
	uint64_t bytes;
} seed;

static void make_seed(void)
{
	const struct engram_backing backing = {.kind = ENGRAM_BACKING_MEMFD};
	struct engram_segment_spec spec = fixture_spec("fuzz", ENGRAM_PACKED);
	struct engram_segment_writer *w;
	struct engram_error err;

	CHECK_OK(engram_segment_create(&backing, &spec, &w, &err));
	seed.bytes = engram_segment_writer_header(w)->total_bytes;
	CHECK_OK(engram_segment_reserve(w, 0, seed.bytes, &err));
	CHECK_OK(engram_segment_publish(w, &err));
	/* A copy, since the segment itself is sealed. */
	seed.fd = memfd_create("fuzz", MFD_CLOEXEC);
	CHECK(seed.fd >= 0 && !ftruncate(seed.fd, (off_t)seed.bytes));
	seed.image = mmap(NULL, seed.bytes, PROT_READ | PROT_WRITE, MAP_SHARED,
			  seed.fd, 0);
	CHECK(seed.image != MAP_FAILED);
	memcpy(seed.image, engram_segment_writer_base(w), seed.bytes);
	seed.good = malloc(PATCHED);
	CHECK(seed.good);
	memcpy(seed.good, seed.image, PATCHED);
	engram_segment_discard(w);
}

static void patch(const uint8_t *data, size_t size)
{
	struct engram_segment_header *h = (void *)seed.image;

	for (; size >= 12; data += 12, size -= 12) {
		uint32_t place;

		memcpy(&place, data, 4);
		/* Mostly the fixed part of the header. */
		place %= place >> 31 ? PATCHED - 8 : sizeof(*h);
		memcpy(seed.image + place, data + 4, 8);
	}
	if (size & 2 && h->data_offset >= sizeof(*h) &&
	    h->data_offset <= seed.bytes)
		h->header_checksum = segment_header_checksum(h, h);
	if (size & 1 && ftruncate(seed.fd, (off_t)(seed.bytes / 256 * data[0])))
		abort();
}

static void restore(void)
{
	if (ftruncate(seed.fd, (off_t)seed.bytes))
		abort();
	memcpy(seed.image, seed.good, PATCHED);
}

static void read_all(const struct engram_segment_map *map)
{
	const struct engram_segment_header *h = map->header;
	const uint64_t rows = map->row_end - map->row_begin;
	const uint64_t code_bytes = segment_code_bytes(h);
	const int32_t *token_map = engram_segment_at(h, &h->token_map);
	volatile unsigned int sum = 0;
	uint64_t bad;

	for (uint64_t r = 0; r < rows; r++)
		for (uint64_t i = 0; i < code_bytes; i++)
			sum += ((const uint8_t *)
					map->codes)[r * h->code_stride + i];
	for (uint64_t i = 0; i < h->token_map.count; i++)
		sum += (unsigned int)token_map[i];
	engram_segment_verify(map, map->row_begin, map->row_end, &bad, NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct engram_segment_map map;
	struct engram_error err = {0};

	if (!seed.image)
		make_seed();
	patch(data, size);
	if (engram_segment_map_fd(seed.fd, 0, UINT64_MAX, &map, &err) ==
	    ENGRAM_OK) {
		read_all(&map);
		engram_segment_unmap(&map);
	} else if (err.status == ENGRAM_OK || !err.message[0]) {
		abort();
	}
	restore();
	return 0;
}
