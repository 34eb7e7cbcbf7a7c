/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any file as a segment: refused, or mapped such that everything that the
 * header points to can be read.  The input is a list of 12-byte patches
 * (offset, value) over a valid segment, so that mutations reach the checks
 * behind the magic; an odd rest cuts the file there.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engram_segment.h"
#include "fuzz_segment_seed.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_all(const struct engram_segment_map *map)
{
	const uint64_t rows = map->row_end - map->row_begin;
	const uint64_t code_bytes =
		(uint64_t)map->header->dim *
		(map->header->dtype == ENGRAM_BF16 ? 2 : 1);
	volatile unsigned int sum = 0;
	uint64_t bad;

	for (uint64_t r = 0; r < rows; r++)
		for (uint64_t i = 0; i < code_bytes; i++)
			sum += ((const uint8_t *)map->codes)
				[r * map->header->code_stride + i];
	engram_segment_verify(map, map->row_begin, map->row_end, &bad, NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct engram_segment_map map;
	struct engram_error err = {0};
	size_t bytes;
	uint8_t *image = fuzz_segment_seed(&bytes);
	int fd = memfd_create("fuzz", MFD_CLOEXEC);

	if (fd < 0 || !image)
		abort();
	for (; size >= 12; data += 12, size -= 12) {
		uint32_t offset;

		memcpy(&offset, data, 4);
		/* Mostly the fixed header; the rest of the region too. */
		offset %= offset & 0x80000000u ? 8192 : 640;
		memcpy(image + offset, data + 4, 8);
	}
	if (size & 1)
		bytes = bytes * data[0] / 256;
	if (size & 2)
		fuzz_segment_checksum(image);
	if (ftruncate(fd, (off_t)bytes) ||
	    pwrite(fd, image, bytes, 0) != (ssize_t)bytes)
		abort();
	if (engram_segment_map_fd(fd, 0, UINT64_MAX, &map, &err) ==
	    ENGRAM_OK) {
		read_all(&map);
		engram_segment_unmap(&map);
	} else if (err.status == ENGRAM_OK || !err.message[0]) {
		abort();
	}
	close(fd);
	free(image);
	return 0;
}
