/* SPDX-License-Identifier: Apache-2.0 */
/* The ids of a batch as a ring has them; for libengram and libengram_cuda. */
#ifndef ENGRAM_RING_IDS_H
#define ENGRAM_RING_IDS_H

#include "engram_ring.h"
#include "engram_row_math.h"

/* Words with the batch's number: the ids of this rank's heads, and -1 for
 * padded ones, to `to` [num_tokens * local_heads].  Returns how many real ids
 * are not among `rows`. */
static inline uint64_t ring_write_ids(uint64_t *to, uint32_t seq,
				      const struct engram_lookup_args *args,
				      const struct engram_rows *rows)
{
	uint64_t misses = 0;

	for (int64_t token = 0; token < args->num_tokens; token++)
		for (uint32_t local = 0; local < args->local_heads; local++) {
			uint32_t head = args->head_begin + local;
			int64_t id = -1;

			if (engram_row_is_real(args, head)) {
				id = engram_row_id(args, token, head);
				misses += !engram_row_is_here(rows, id);
			}
			*to++ = ENGRAM_RING_WORD(seq, id);
		}
	return misses;
}

#endif
