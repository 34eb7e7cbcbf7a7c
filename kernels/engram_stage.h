/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stored rows, wherever they are, copied side by side: what a host does for
 * devices that read random rows of its memory slowly.
 */
#ifndef ENGRAM_STAGE_H
#define ENGRAM_STAGE_H

#include "engram_kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Rows that are on their way to the cache at a time. */
#define ENGRAM_STAGE_AHEAD 32

enum engram_stage_to {
	/* what is read soon, by a device that the cache answers */
	ENGRAM_STAGE_CACHED,
	/* past the caches, where `out` is aligned to 64 bytes: up to the next
	 * multiple of eight rows may be written then (with zeros behind the
	 * last) */
	ENGRAM_STAGE_STREAMED
};

/* Rows that are copied in several calls, for one wait for memory in all. */
struct engram_stage {
	const struct engram_rows *rows;
	const int32_t *ids;
	size_t count, next, done;
	size_t code_bytes, scale_bytes;
	struct {
		const uint8_t *codes, *scales; /* NULL: zeros */
	} records[ENGRAM_STAGE_AHEAD];
};

/* `rows` and ids[count] stay as they are until the last row is copied. */
void engram_cpu_stage_begin(struct engram_stage *stage,
			    const struct engram_rows *rows, const int32_t *ids,
			    size_t count);
/*
 * The next `count` rows, or as many as are left: out[i] = the codes, then the
 * scales, of the row, from i * stride on: packed records for engram_cpu_decode,
 * whatever layout the rows have.  Ids outside [row_begin, row_end), -1 among
 * them, give zeros.
 *
 * `stride` is a multiple of 8 and at least the bytes of a record, `out` is
 * 8-byte aligned.  Thread-safe on distinct outputs.
 */
void engram_cpu_stage_next(struct engram_stage *stage, size_t count, void *out,
			   size_t stride, enum engram_stage_to to);
/* All of it at once, streamed. */
void engram_cpu_stage(const struct engram_rows *rows, const int32_t *ids,
		      size_t count, void *out, size_t stride);

#ifdef __cplusplus
}
#endif
#endif
