/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of codes and scales to rows of a segment, and their checksum. */
#ifndef ENGRAMD_PACK_H
#define ENGRAMD_PACK_H

#include <stdbool.h>
#include <stdint.h>

#include "checksum.h"
#include "engram_segment.h"

struct pack {
	uint8_t *base; /* of the segment, or NULL: only the checksum */
	const struct engram_segment_header *header;
	uint64_t code_bytes, scale_bytes; /* of a row */
	XXH3_state_t *hash;
	uint8_t *tile; /* a few records, in the first-level cache */
	uint64_t tile_rows;
};

/* For rows like those of `header`, of any segment. */
enum engram_status pack_init(struct pack *pack,
			     const struct engram_segment_header *header,
			     struct engram_error *err);
void pack_free(struct pack *pack);

/* A chunk: begin, its rows in order, end, which gives its checksum.  Its
 * records go to `base`, unless that is NULL. */
void pack_begin(struct pack *pack, void *base,
		const struct engram_segment_header *header);
void pack_rows(struct pack *pack, uint64_t row, uint64_t rows,
	       const uint8_t *codes, const uint8_t *scales);
uint64_t pack_end(struct pack *pack);

#endif
