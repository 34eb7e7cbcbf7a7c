/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "check.h"
#include "engram_row_math.h"
#include "engram_segment.h"

static int has_scales(const struct engram_rows *rows)
{
	return rows->scale_scheme == ENGRAM_SCALE_UE8M0_BLOCK;
}

size_t engram_raw_scale_bytes(const struct engram_rows *rows,
			      int64_t num_tokens, uint32_t local_heads,
			      enum engram_scale_layout layout)
{
	size_t cols, tokens = (size_t)num_tokens;

	if (!has_scales(rows) || num_tokens < 1 || !rows->block_size)
		return 0;
	cols = (size_t)local_heads * engram_row_scales(rows);
	if (layout == ENGRAM_SCALES_PLAIN)
		return tokens * cols;
	return (tokens + 127) / 128 * ((cols + 3) / 4) * 512;
}

/* One row's codes; index -1: zeros. */
static void copy_codes(const struct engram_rows *rows, int64_t index,
		       size_t bytes, uint8_t *codes)
{
	if (index < 0)
		memset(codes, 0, bytes);
	else
		memcpy(codes,
		       (const uint8_t *)rows->codes +
			       index * rows->code_stride_bytes,
		       bytes);
}

/* The index of a head's row, or -1, which is counted unless it is padding. */
static int64_t find_row(const struct engram_rows *rows,
			const struct engram_lookup_args *args, int64_t token,
			uint32_t head, uint64_t *misses)
{
	int64_t id;

	if (!engram_row_is_real(args, head))
		return -1;
	id = engram_row_id(args, token, head);
	if (engram_row_is_here(rows, id))
		return id - rows->row_begin;
	++*misses;
	return -1;
}

static void place_scales(const struct engram_raw_out *out,
			 const uint8_t *scales, uint32_t count, int64_t token,
			 uint32_t local, uint32_t local_heads)
{
	int64_t cols = (int64_t)local_heads * count;
	int64_t first = (int64_t)local * count;

	for (uint32_t s = 0; s < count; s++)
		out->scales[engram_raw_scale_place(
			out->scale_layout, token, first + s, cols)] = scales[s];
}

enum engram_status engram_cpu_lookup_raw(const struct engram_rows *rows,
					 const struct engram_lookup_args *args,
					 const struct engram_raw_out *out,
					 struct engram_error *err)
{
	enum engram_status status = engram_check_raw(rows, args, out, err);
	int scaled = has_scales(rows) && out->scales;
	size_t bytes;
	uint64_t misses = 0;

	if (status)
		return status;
	bytes = rows->dim * (rows->dtype == ENGRAM_BF16 ? 2ul : 1ul);
	if (scaled)
		memset(out->scales, 0,
		       engram_raw_scale_bytes(rows, args->num_tokens,
					      args->local_heads,
					      out->scale_layout));
	for (int64_t t = 0; t < args->num_tokens; t++)
		for (uint32_t h = 0; h < args->local_heads; h++) {
			int64_t index = find_row(rows, args, t,
						 args->head_begin + h, &misses);
			uint8_t *codes =
				out->codes +
				(size_t)(t * args->local_heads + h) * bytes;

			copy_codes(rows, index, bytes, codes);
			if (scaled && index >= 0)
				place_scales(
					out,
					(const uint8_t *)rows->scales +
						index * rows->scale_stride_bytes,
					engram_row_scales(rows), t, h,
					args->local_heads);
		}
	if (args->misses)
		*args->misses += misses;
	return ENGRAM_OK;
}
