/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random rows miss every cache and the TLB: a row is prefetched
 * ENGRAM_STAGE_AHEAD rows before it is copied, so that as many misses as the
 * core can have are under way; into the second-level cache, which keeps more of
 * them waiting than the first.  Eight rows of any stride are whole cache lines:
 * where they are not to stay in the cache they are put together in its first
 * level and leave past the others, since a store that missed would read each
 * line of `out` first.
 */
#include <stdalign.h>
#include <string.h>

#include "engram_row_math.h"
#include "engram_segment.h"
#include "stage.h"
#include "stream.h"

#define TOGETHER 8
#define STAGE	 8192 /* bytes of rows put together */

static inline void fetch(const uint8_t *from, size_t bytes)
{
	size_t at;

	for (at = 0; at < bytes; at += 64)
		__builtin_prefetch(from + at, 0, 2);
	/* a line more, if it does not begin with one */
	__builtin_prefetch(from + bytes - 1, 0, 2);
}

static inline void start_one(struct engram_stage *s)
{
	const struct engram_rows *rows = s->rows;
	int64_t row;
	size_t at;
	int32_t id;

	if (s->next >= s->count)
		return;
	id = s->ids[s->next];
	at = s->next++ % ENGRAM_STAGE_AHEAD;
	s->records[at].codes = s->records[at].scales = NULL;
	if (!engram_row_is_here(rows, id))
		return;
	row = id - rows->row_begin;
	s->records[at].codes =
		(const uint8_t *)rows->codes + row * rows->code_stride_bytes;
	fetch(s->records[at].codes, s->code_bytes);
	if (!rows->scales)
		return;
	s->records[at].scales =
		(const uint8_t *)rows->scales + row * rows->scale_stride_bytes;
	if (s->scale_bytes)
		__builtin_prefetch(s->records[at].scales + s->scale_bytes - 1,
				   0, 2);
}

static inline void copy_one(const struct engram_stage *s, size_t i, uint8_t *to,
			    size_t stride)
{
	const uint8_t *codes = s->records[i % ENGRAM_STAGE_AHEAD].codes;
	const uint8_t *scales = s->records[i % ENGRAM_STAGE_AHEAD].scales;
	size_t bytes = s->code_bytes + s->scale_bytes;

	if (!codes) {
		memset(to, 0, stride);
		return;
	}
	/* the released model's: moves without a loop */
	if (s->code_bytes == 256)
		memcpy(to, codes, 256);
	else
		memcpy(to, codes, s->code_bytes);
	if (s->scale_bytes == 8)
		memcpy(to + s->code_bytes, scales, 8);
	else if (s->scale_bytes)
		memcpy(to + s->code_bytes, scales, s->scale_bytes);
	if (stride > bytes)
		memset(to + bytes, 0, stride - bytes);
}

static inline void copy_cached(struct engram_stage *s, size_t end, uint8_t *out,
			       size_t stride)
{
	for (; s->done < end; s->done++, out += stride) {
		copy_one(s, s->done, out, stride);
		start_one(s);
	}
}

static inline void copy_streamed(struct engram_stage *s, size_t end,
				 uint8_t *out, size_t stride)
{
	alignas(64) uint8_t together[STAGE];
	size_t in = 0;

	for (; s->done < end; s->done++) {
		copy_one(s, s->done, together + in * stride, stride);
		start_one(s);
		if (++in < TOGETHER)
			continue;
		stream(out, together, TOGETHER * stride);
		out += TOGETHER * stride;
		in = 0;
	}
	if (in) {
		memset(together + in * stride, 0, (TOGETHER - in) * stride);
		stream(out, together, TOGETHER * stride);
	}
	stream_end();
}

static inline void stage_rows(struct engram_stage *s, size_t count,
			      uint8_t *out, size_t stride,
			      enum engram_stage_to to)
{
	size_t left = s->count - s->done;
	size_t end = s->done + (count < left ? count : left);

	if (to == ENGRAM_STAGE_STREAMED && (uintptr_t)out % 64 == 0 &&
	    TOGETHER * stride <= STAGE)
		copy_streamed(s, end, out, stride);
	else
		copy_cached(s, end, out, stride);
}
