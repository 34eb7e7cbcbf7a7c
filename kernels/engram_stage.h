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

/*
 * out[i] = the codes, then the scales, of row ids[i], from i * stride on:
 * packed records for engram_cpu_decode, whatever layout `rows` has.  Ids
 * outside [row_begin, row_end), -1 among them, give zeros.
 *
 * `stride` is a multiple of 8 and at least the bytes of a record, `out` is
 * 8-byte aligned.  Eight rows at a time go past the caches where `out` is
 * aligned to 64 bytes; up to the next multiple of eight rows may be written
 * then (with zeros behind the last).  Thread-safe on distinct outputs.
 */
void engram_cpu_stage(const struct engram_rows *rows, const int32_t *ids,
		      size_t count, void *out, size_t stride);

#ifdef __cplusplus
}
#endif
#endif
