/* SPDX-License-Identifier: Apache-2.0 */
/* Does a header contradict itself?  Faults are reported as `fault`:
 * ENGRAM_EINVAL of a specification, ENGRAM_EDAMAGED of a segment. */
#ifndef ENGRAM_SHM_SEGMENT_CHECK_H
#define ENGRAM_SHM_SEGMENT_CHECK_H

#include "segment.h"

/* Each field for itself, and the scalars against each other; on success
 * sizes follow from them without overflow. */
enum engram_status segment_check_fields(const struct engram_segment_header *h,
					enum engram_status fault,
					struct engram_error *err);

/* primes and offsets, both [num_cols], against each other and rows. */
enum engram_status segment_check_columns(const struct engram_segment_header *h,
					 const int64_t *primes,
					 const int64_t *offsets,
					 enum engram_status fault,
					 struct engram_error *err);

/* What a reader must know beyond the above before it follows an offset:
 * strings end, records and blocks lie where they may. */
enum engram_status segment_check_places(const struct engram_segment_header *h,
					struct engram_error *err);

#endif
