/* SPDX-License-Identifier: Apache-2.0 */
#include "failpoint.h"
#include "loader_worker.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "pack.h"

/* Memory is reserved this far ahead of the rows; whole huge pages. */
#define RESERVE_STEP (UINT64_C(8) << 20)

/* A block in flight. */
struct slot {
	struct loader_block block;
	struct reader_request codes, scales;
	uint64_t codes_skip, scales_skip;
};

struct worker {
	struct loader_shared *shared;
	const struct loader_plan *plan;
	struct reader *reader;
	struct pack pack;
	uint8_t *arena;
	size_t arena_bytes;
	struct slot *slots; /* a ring of shared->depth */
	uint32_t first, count;
	uint64_t row, row_end;	 /* of the claimed chunk, still to start */
	uint64_t codes_reserved; /* end of it, in the segment */
	uint64_t scales_reserved;
	struct engram_error err;
};

void loader_fail(struct loader_shared *shared, enum engram_status status,
		 const struct engram_error *err)
{
	pthread_mutex_lock(&shared->lock);
	if (!shared->status) {
		shared->status = status;
		shared->err = *err;
	}
	pthread_mutex_unlock(&shared->lock);
	atomic_store(&shared->stop, true);
}

static bool stopped(const struct loader_shared *shared)
{
	return atomic_load(&shared->stop) ||
	       atomic_load(&shared->progress->cancel);
}

static void note_reader(struct worker *w, int fall_back_errno)
{
	struct loader_shared *shared = w->shared;

	pthread_mutex_lock(&shared->lock);
	if (fall_back_errno) {
		shared->fell_back = true;
		shared->fall_back_errno = fall_back_errno;
	}
	if (!w->reader->registered)
		shared->unregistered = true;
	pthread_mutex_unlock(&shared->lock);
}

static enum engram_status open_reader(struct worker *w)
{
	struct loader_shared *shared = w->shared;
	int r = 0, fall_back_errno = 0;
	enum engram_status status;

	if (shared->engine == LOADER_IO_URING) {
		r = reader_uring_open(2 * shared->depth, w->arena,
				      w->arena_bytes, &w->reader);
		fall_back_errno = -r;
	}
	if (shared->engine == LOADER_PREADV ||
	    (r && shared->wish == LOADER_AUTO))
		r = reader_pread_open(2 * shared->depth, &w->reader);
	if (!r) {
		note_reader(w, fall_back_errno);
		return ENGRAM_OK;
	}
	status = engram_error_sys(&w->err, -r, "set up a ring of reads");
	engram_error_fix(&w->err, "set loader.engine to \"auto\" or "
				  "\"preadv\", or free some memory");
	return status;
}

static enum engram_status worker_init(struct worker *w,
				      struct loader_shared *shared)
{
	const struct loader_plan *plan = &shared->plan;
	const uint64_t codes = loader_plan_window_max(
		plan->block_rows * plan->code_bytes, shared->align);
	const uint64_t scales = loader_plan_window_max(
		plan->block_rows * plan->scale_bytes, shared->align);
	enum engram_status status;
	uint32_t i;

	w->shared = shared;
	w->plan = plan;
	w->arena_bytes = shared->depth * (codes + scales);
	w->slots = calloc(shared->depth, sizeof(*w->slots));
	if (!w->slots ||
	    posix_memalign((void **)&w->arena, shared->align, w->arena_bytes)) {
		w->arena = NULL;
		status = engram_error_sys(&w->err, ENOMEM,
					  "%zu bytes of read buffers",
					  w->arena_bytes);
		engram_error_fix(&w->err, "lower loader.threads, queue_depth "
					  "or block_bytes");
		return status;
	}
	for (i = 0; i < shared->depth; i++) {
		w->slots[i].codes.buffer = w->arena + i * (codes + scales);
		w->slots[i].scales.buffer = w->slots[i].codes.buffer + codes;
	}
	status = pack_init(&w->pack, engram_segment_writer_base(shared->writer),
			   engram_segment_writer_header(shared->writer),
			   &w->err);
	return status ? status : open_reader(w);
}

static void worker_free(struct worker *w)
{
	/* Buffers that the kernel may still write to are given up. */
	if (reader_close(w->reader))
		free(w->arena);
	if (w->pack.hash)
		pack_free(&w->pack);
	free(w->slots);
}

static enum engram_status start_window(struct worker *w,
				       struct reader_request *request,
				       const struct loader_block *block,
				       const struct checkpoint_tensor *tensor,
				       uint64_t row_bytes, uint64_t *skip)
{
	const struct loader_place place =
		loader_plan_place(tensor, row_bytes, block->row);
	const struct loader_window window = loader_plan_window(
		place.offset, block->rows * row_bytes, w->shared->align);

	*skip = window.skip;
	request->source = sources_of(&w->shared->sources, place.file);
	request->offset = window.offset;
	request->bytes = (uint32_t)window.bytes;
	request->needed = (uint32_t)window.needed;
	return reader_start(w->reader, request, &w->err);
}

/* Start the next block; false if there is none. */
static bool start_block(struct worker *w, enum engram_status *status)
{
	struct loader_shared *shared = w->shared;
	const struct loader_plan *plan = w->plan;
	struct slot *slot;
	uint64_t chunk;

	if (w->row == w->row_end) {
		chunk = atomic_fetch_add(&shared->next_chunk, 1);
		if (chunk >= plan->num_chunks)
			return false;
		w->row = chunk * plan->chunk_rows;
		w->row_end = loader_plan_chunk_end(plan, chunk);
	}
	slot = &w->slots[(w->first + w->count++) % shared->depth];
	slot->block = loader_plan_block(plan, w->row);
	w->row += slot->block.rows;
	*status = start_window(w, &slot->codes, &slot->block, plan->codes,
			       plan->code_bytes, &slot->codes_skip);
	if (!*status && plan->scale_bytes)
		*status = start_window(w, &slot->scales, &slot->block,
				       plan->scales, plan->scale_bytes,
				       &slot->scales_skip);
	return true;
}

/*
 * Have memory behind [begin, end) of the segment, which grows towards
 * `limit`, the end of the chunk.
 */
static enum engram_status reserve(struct worker *w, uint64_t *reserved,
				  uint64_t begin, uint64_t end, uint64_t limit)
{
	enum engram_status status;

	if (*reserved < begin || *reserved > limit)
		*reserved = begin;
	if (*reserved >= end)
		return ENGRAM_OK;
	end = (end + RESERVE_STEP - 1) / RESERVE_STEP * RESERVE_STEP;
	if (end > limit)
		end = limit;
	status = engram_segment_reserve(w->shared->writer, *reserved,
					end - *reserved, &w->err);
	*reserved = end;
	return status;
}

static enum engram_status reserve_block(struct worker *w,
					const struct loader_block *block)
{
	const struct engram_segment_header *h = w->pack.header;
	const uint64_t end = block->row + block->rows;
	const uint64_t limit = loader_plan_chunk_end(w->plan, block->chunk);
	enum engram_status status;

	status = reserve(w, &w->codes_reserved,
			 h->codes_offset + block->row * h->code_stride,
			 h->codes_offset + end * h->code_stride,
			 h->codes_offset + limit * h->code_stride);
	if (!status && h->record_layout == ENGRAM_SPLIT && h->scale_stride)
		status =
			reserve(w, &w->scales_reserved,
				h->scales_offset + block->row * h->scale_stride,
				h->scales_offset + end * h->scale_stride,
				h->scales_offset + limit * h->scale_stride);
	return status;
}

static enum engram_status put_block(struct worker *w, struct slot *slot)
{
	const struct loader_block *block = &slot->block;
	const uint64_t chunk_end = loader_plan_chunk_end(w->plan, block->chunk);
	enum engram_status status = reserve_block(w, block);

	if (status)
		return status;
	if (block->row == block->chunk * w->plan->chunk_rows)
		pack_begin(&w->pack);
	pack_rows(&w->pack, block->row, block->rows,
		  slot->codes.buffer + slot->codes_skip,
		  w->plan->scale_bytes ? slot->scales.buffer + slot->scales_skip
				       : NULL);
	if (block->row + block->rows == chunk_end)
		engram_segment_writer_checksums(
			w->shared->writer)[block->chunk] = pack_end(&w->pack);
	source_drop(slot->codes.source, slot->codes.offset, slot->codes.bytes);
	if (w->plan->scale_bytes)
		source_drop(slot->scales.source, slot->scales.offset,
			    slot->scales.bytes);
	status = FAILPOINT_STATUS(load_block, &w->err);
	if (status)
		return status;
	atomic_fetch_add(&w->shared->progress->bytes_done,
			 block->rows *
				 (w->plan->code_bytes + w->plan->scale_bytes));
	return ENGRAM_OK;
}

static enum engram_status work(struct worker *w)
{
	enum engram_status status = ENGRAM_OK;
	struct slot *slot;
	bool more = true;

	while (!stopped(w->shared)) {
		while (more && !status && w->count < w->shared->depth)
			more = start_block(w, &status);
		if (status || !w->count)
			return status;
		slot = &w->slots[w->first];
		if (slot->codes.pending || slot->scales.pending) {
			status = reader_step(w->reader, &w->err);
		} else {
			status = put_block(w, slot);
			w->first = (w->first + 1) % w->shared->depth;
			w->count--;
		}
		if (status)
			return status;
	}
	return ENGRAM_OK;
}

void *loader_worker(void *shared)
{
	struct worker w = {0};
	enum engram_status status = worker_init(&w, shared);

	if (!status)
		status = work(&w);
	if (status)
		loader_fail(shared, status, &w.err);
	worker_free(&w);
	return NULL;
}
