/* SPDX-License-Identifier: Apache-2.0 */
/* Which rows are read when, and which bytes of the files hold them. */
#ifndef ENGRAMD_LOADER_PLAN_H
#define ENGRAMD_LOADER_PLAN_H

#include <stddef.h>
#include <stdint.h>

#include "checkpoint.h"
#include "engram_segment.h"
#include "loader.h"
#include "sources.h"

struct loader_plan {
	uint64_t rows;
	uint64_t chunk_rows; /* one checksum, claimed by one worker */
	uint64_t num_chunks;
	uint64_t code_bytes;  /* of a row */
	uint64_t scale_bytes; /* of a row; 0: nothing to read */
	const struct checkpoint_tensor *codes, *scales;
};

/* Where a row's bytes are, and how many rows from there on. */
struct loader_place {
	uint32_t file; /* of the checkpoint */
	uint64_t offset;
	uint64_t rows;
};

/* A run of rows inside one chunk. */
struct loader_block {
	uint64_t chunk, row, rows;
};

/* Bytes of a file, at offsets that direct reads allow. */
struct loader_window {
	uint64_t offset;
	uint64_t bytes;
	uint64_t skip;	 /* before the first byte wanted */
	uint64_t needed; /* skip and the bytes wanted */
};

/* ENGRAM_EINVAL if tensors and segment are not of one shape. */
enum engram_status loader_plan_init(struct loader_plan *plan,
				    const struct engram_segment_header *h,
				    const struct checkpoint_layer *layer,
				    struct engram_error *err);

/* Rows whose codes are about so many bytes; at least one. */
uint64_t loader_plan_block_rows(const struct loader_plan *plan,
				uint64_t block_bytes);

/* `row_bytes` is what a row of this tensor has. */
struct loader_place loader_plan_place(const struct checkpoint_tensor *tensor,
				      uint64_t row_bytes, uint64_t row);
/* The block that begins at `row`, of at most so many; of each tensor in one
 * place. */
struct loader_block loader_plan_block(const struct loader_plan *plan,
				      uint64_t row, uint64_t most_rows);
uint64_t loader_plan_chunk_end(const struct loader_plan *plan, uint64_t chunk);

/* These rows are in place: the page cache need not hold what buffered reads of
 * them have left there.  Whole chunks, as it holds files in large pieces. */
void loader_plan_drop(const struct loader_plan *plan,
		      const struct sources *sources, uint64_t row_begin,
		      uint64_t row_end);

struct loader_window loader_plan_window(uint64_t begin, uint64_t bytes,
					uint64_t align);
/* The largest window over `bytes` bytes. */
uint64_t loader_plan_window_max(uint64_t bytes, uint64_t align);

#endif
