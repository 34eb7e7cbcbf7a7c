/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From the two arrays that a checkpoint has, codes and scales, to records, and
 * copies past the caches.  What a loader does with every byte of a table.
 */
#ifndef ENGRAM_RECORDS_H
#define ENGRAM_RECORDS_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * out[i] = the codes, then the scales, of row i: `rows` records of code_bytes
 * + scale_bytes, without gaps.  Either of the two may be 0.  Through the
 * caches: made for an `out` that stays in the first one.
 */
void engram_cpu_interleave(void *out, const void *codes, const void *scales,
			   size_t rows, size_t code_bytes, size_t scale_bytes);

/*
 * memcpy past the caches, of any alignment; best where both ends of `to` are
 * aligned to 64 bytes.  Not ordered before what the caller stores after, for
 * other threads to see, until engram_cpu_stream_end: it waits for the stores,
 * so once for many of them.
 */
void engram_cpu_stream(void *to, const void *from, size_t bytes);
void engram_cpu_stream_end(void);

#ifdef __cplusplus
}
#endif
#endif
