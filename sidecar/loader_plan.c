/* SPDX-License-Identifier: Apache-2.0 */
#include "loader_plan.h"

#include <inttypes.h>

static enum engram_status mismatch(struct engram_error *err, const char *what,
				   uint64_t have, uint64_t want)
{
	engram_error_set(err, ENGRAM_EINVAL,
			 "%s: %" PRIu64 " in the checkpoint, %" PRIu64
			 " in the segment",
			 what, have, want);
	engram_error_fix(err, "report this: a segment was planned for another "
			      "layer");
	return ENGRAM_EINVAL;
}

enum engram_status loader_plan_init(struct loader_plan *plan,
				    const struct engram_segment_header *h,
				    const struct checkpoint_layer *layer,
				    struct engram_error *err)
{
	const uint64_t record = engram_segment_record_bytes(h);

	plan->rows = h->rows;
	plan->chunk_rows = h->chunk_rows;
	plan->num_chunks = h->checksums.count;
	plan->code_bytes = (uint64_t)h->dim * (h->dtype == ENGRAM_BF16 ? 2 : 1);
	plan->scale_bytes = record - plan->code_bytes;
	plan->codes = &layer->weight;
	plan->scales = &layer->scale;

	if (layer->rows != h->rows)
		return mismatch(err, "rows", layer->rows, h->rows);
	if (layer->weight.bytes != h->rows * plan->code_bytes)
		return mismatch(err, "bytes of codes", layer->weight.bytes,
				h->rows * plan->code_bytes);
	if (plan->scale_bytes &&
	    layer->scale.bytes != h->rows * plan->scale_bytes)
		return mismatch(err, "bytes of scales", layer->scale.bytes,
				h->rows * plan->scale_bytes);
	return ENGRAM_OK;
}

uint64_t loader_plan_block_rows(const struct loader_plan *plan,
				uint64_t block_bytes)
{
	const uint64_t rows = block_bytes / plan->code_bytes;

	if (!rows)
		return 1;
	return rows < plan->chunk_rows ? rows : plan->chunk_rows;
}

uint64_t loader_plan_chunk_end(const struct loader_plan *plan, uint64_t chunk)
{
	const uint64_t begin = chunk * plan->chunk_rows;

	return plan->rows - begin < plan->chunk_rows ? plan->rows
						     : begin + plan->chunk_rows;
}

struct loader_place loader_plan_place(const struct checkpoint_tensor *tensor,
				      uint64_t row_bytes, uint64_t row)
{
	const struct checkpoint_part *part = tensor->parts;

	if (!part)
		return (struct loader_place){tensor->file,
					     tensor->offset + row * row_bytes,
					     UINT64_MAX};
	for (; row >= part->rows; part++)
		row -= part->rows;
	return (struct loader_place){part->file, part->offset + row * row_bytes,
				     part->rows - row};
}

/* No more rows than the tensor has in one place. */
static void limit(struct loader_block *block,
		  const struct checkpoint_tensor *tensor, uint64_t row_bytes)
{
	const uint64_t rows =
		loader_plan_place(tensor, row_bytes, block->row).rows;

	if (block->rows > rows)
		block->rows = rows;
}

struct loader_block loader_plan_block(const struct loader_plan *plan,
				      uint64_t row, uint64_t most_rows)
{
	struct loader_block block = {.chunk = row / plan->chunk_rows,
				     .row = row};

	block.rows = loader_plan_chunk_end(plan, block.chunk) - row;
	if (block.rows > most_rows)
		block.rows = most_rows;
	limit(&block, plan->codes, plan->code_bytes);
	if (plan->scale_bytes)
		limit(&block, plan->scales, plan->scale_bytes);
	return block;
}

static void drop(const struct checkpoint_tensor *tensor, uint64_t row_bytes,
		 const struct sources *sources, uint64_t row, uint64_t rows)
{
	const struct loader_place place =
		loader_plan_place(tensor, row_bytes, row);

	source_drop(sources_of(sources, place.file), place.offset,
		    rows * row_bytes);
}

void loader_plan_drop(const struct loader_plan *plan,
		      const struct sources *sources, uint64_t row_begin,
		      uint64_t row_end)
{
	struct loader_block block;
	uint64_t row;

	if (sources_direct(sources))
		return;
	for (row = row_begin; row < row_end; row += block.rows) {
		block = loader_plan_block(plan, row, row_end - row);
		drop(plan->codes, plan->code_bytes, sources, row, block.rows);
		if (plan->scale_bytes)
			drop(plan->scales, plan->scale_bytes, sources, row,
			     block.rows);
	}
}

struct loader_window loader_plan_window(uint64_t begin, uint64_t bytes,
					uint64_t align)
{
	struct loader_window w;

	w.skip = begin % align;
	w.offset = begin - w.skip;
	w.needed = w.skip + bytes;
	w.bytes = (w.needed + align - 1) / align * align;
	return w;
}

uint64_t loader_plan_window_max(uint64_t bytes, uint64_t align)
{
	/* One byte into the first unit, one byte into the last. */
	return bytes ? (bytes + 2 * align - 2) / align * align : 0;
}
