/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mapped memory, cut into ranges that are registered one by one: a single
 * registration of 512 GiB or more fails, and a short one lets other threads
 * at the driver's locks.  A range ends where a row and a page end, so that no
 * row spans two registrations.
 */
#ifndef ENGRAM_CUDA_REGISTER_H
#define ENGRAM_CUDA_REGISTER_H

#include <stddef.h>
#include <stdint.h>

#include "engram_error.h"

#define CUDA_CHUNK_DEFAULT (UINT64_C(4) << 30)
#define CUDA_CHUNK_MAX	   (UINT64_C(256) << 30)

struct cuda_range {
	char *address;
	uint64_t bytes;
	uint32_t mapping; /* which mapping it is a part of */
};

struct cuda_ranges {
	struct cuda_range *list;
	uint32_t count, capacity;
	uint32_t mappings; /* cut so far */
	uint32_t registered;
	uint64_t bytes;
};

/*
 * Cut a mapping into ranges of chunk_bytes at most (or, if that is more, of the
 * fewest bytes that are whole rows and pages), and add them.  `first_row` is
 * where some row begins; stride of rows in bytes.  ENGRAM_ENOMEM.
 */
enum engram_status cuda_ranges_cut(struct cuda_ranges *ranges, void *mapping,
				   uint64_t bytes, const void *first_row,
				   uint64_t stride, uint64_t chunk_bytes,
				   struct engram_error *err);
/* Of memory; what is registered must have been unregistered. */
void cuda_ranges_free(struct cuda_ranges *ranges);

/* Register the next range, read-only or not, and see that the device has it
 * at its host address.  On an error it is not registered. */
enum engram_status cuda_register_next(struct cuda_ranges *ranges, int read_only,
				      struct engram_error *err);
/* All of them, the last first. */
void cuda_unregister(struct cuda_ranges *ranges);

#endif
