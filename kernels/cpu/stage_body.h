/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random rows miss every cache and the TLB: a row is prefetched AHEAD rows
 * before it is copied, so that as many misses as the core can have are under
 * way.  Eight rows of any stride are whole cache lines: they are put together
 * in the first-level cache and leave past the caches, since a store that
 * missed would read each line of `out` first.
 */
#include <stdalign.h>
#include <string.h>

#include "engram_row_math.h"
#include "engram_segment.h"
#include "stage.h"
#include "stream.h"

#define AHEAD	 16
#define TOGETHER 8
#define STAGE	 8192 /* bytes of rows put together */

/* The record of an id, in one piece or two; no codes: zeros. */
struct record {
	const uint8_t *codes, *scales;
};

struct sizes {
	size_t codes, scales;
};

static struct record find(const struct engram_rows *rows, int32_t id)
{
	struct record r = {NULL, NULL};
	int64_t row = id - rows->row_begin;

	if (!engram_row_is_here(rows, id))
		return r;
	r.codes = (const uint8_t *)rows->codes + row * rows->code_stride_bytes;
	if (rows->scales)
		r.scales = (const uint8_t *)rows->scales +
			   row * rows->scale_stride_bytes;
	return r;
}

static void fetch(const struct record *r, const struct sizes *sizes)
{
	size_t at;

	if (!r->codes)
		return;
	for (at = 0; at < sizes->codes; at += 64)
		__builtin_prefetch(r->codes + at);
	__builtin_prefetch(r->codes + sizes->codes - 1);
	if (sizes->scales)
		__builtin_prefetch(r->scales + sizes->scales - 1);
}

static void copy(uint8_t *to, const struct record *r, const struct sizes *sizes,
		 size_t stride)
{
	size_t bytes = sizes->codes + sizes->scales;

	if (!r->codes) {
		memset(to, 0, stride);
		return;
	}
	/* the released model's: moves without a loop */
	if (sizes->codes == 256)
		memcpy(to, r->codes, 256);
	else
		memcpy(to, r->codes, sizes->codes);
	if (sizes->scales == 8)
		memcpy(to + sizes->codes, r->scales, 8);
	else if (sizes->scales)
		memcpy(to + sizes->codes, r->scales, sizes->scales);
	if (stride > bytes)
		memset(to + bytes, 0, stride - bytes);
}

/* The rows on their way, in a ring of AHEAD. */
struct flight {
	const struct engram_rows *rows;
	const int32_t *ids;
	size_t count, next;
	struct sizes sizes;
	struct record records[AHEAD];
};

static void start_one(struct flight *f)
{
	struct record r;

	if (f->next >= f->count)
		return;
	r = find(f->rows, f->ids[f->next]);
	fetch(&r, &f->sizes);
	f->records[f->next++ % AHEAD] = r;
}

static void stage_rows(const struct engram_rows *rows, const int32_t *ids,
		       size_t count, uint8_t *out, size_t stride)
{
	alignas(64) uint8_t together[STAGE];
	int streams = (uintptr_t)out % 64 == 0 && TOGETHER * stride <= STAGE;
	struct flight f = {.rows = rows, .ids = ids, .count = count};
	size_t i, in;

	f.sizes.codes =
		(size_t)rows->dim * (rows->dtype == ENGRAM_BF16 ? 2 : 1);
	if (rows->scale_scheme == ENGRAM_SCALE_UE8M0_BLOCK)
		f.sizes.scales = engram_row_scales(rows);
	for (i = 0; i < AHEAD; i++)
		start_one(&f);
	for (i = 0; i < count; i++) {
		struct record *r = &f.records[i % AHEAD];

		in = i % TOGETHER;
		if (streams)
			copy(together + in * stride, r, &f.sizes, stride);
		else
			copy(out + i * stride, r, &f.sizes, stride);
		start_one(&f);
		if (streams && in == TOGETHER - 1)
			stream(out + (i - in) * stride, together,
			       TOGETHER * stride);
	}
	in = count % TOGETHER;
	if (!streams)
		return;
	if (in) {
		memset(together + in * stride, 0, (TOGETHER - in) * stride);
		stream(out + (count - in) * stride, together,
		       TOGETHER * stride);
	}
	stream_end();
}
