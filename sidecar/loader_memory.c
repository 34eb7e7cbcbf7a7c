/* SPDX-License-Identifier: Apache-2.0 */
#include "loader_memory.h"

#include <stdlib.h>

/* Whole huge pages; a cancellation waits for one. */
#define STRETCH_BYTES (UINT64_C(16) << 20)

enum stretch { STRETCH_NONE, STRETCH_BUSY, STRETCH_THERE };

enum engram_status loader_memory_init(struct loader_memory *memory,
				      struct engram_segment_writer *writer,
				      _Atomic uint64_t *touched,
				      struct engram_error *err)
{
	const struct engram_segment_header *h =
		engram_segment_writer_header(writer);
	const uint64_t page = engram_segment_writer_page(writer);
	const uint64_t stretch = page > STRETCH_BYTES ? page : STRETCH_BYTES;

	*memory = (struct loader_memory){.writer = writer,
					 .header = h,
					 .bytes = h->total_bytes,
					 .stretch_bytes = stretch,
					 .touched = touched};
	memory->stretch = calloc((h->total_bytes + stretch - 1) / stretch,
				 sizeof(*memory->stretch));
	if (!memory->stretch) {
		engram_error_set(err, ENGRAM_ENOMEM,
				 "no memory to plan a load");
		engram_error_fix(err, "free some memory");
		return ENGRAM_ENOMEM;
	}
	pthread_mutex_init(&memory->lock, NULL);
	pthread_cond_init(&memory->changed, NULL);
	return ENGRAM_OK;
}

void loader_memory_free(struct loader_memory *memory)
{
	if (!memory->stretch)
		return;
	pthread_cond_destroy(&memory->changed);
	pthread_mutex_destroy(&memory->lock);
	free(memory->stretch);
	memory->stretch = NULL;
}

void loader_memory_wake(struct loader_memory *memory)
{
	pthread_mutex_lock(&memory->lock);
	pthread_cond_broadcast(&memory->changed);
	pthread_mutex_unlock(&memory->lock);
}

static enum engram_status touch(struct loader_memory *memory, uint64_t i,
				struct engram_error *err)
{
	const uint64_t begin = i * memory->stretch_bytes;
	const uint64_t left = memory->bytes - begin;
	const uint64_t bytes =
		left < memory->stretch_bytes ? left : memory->stretch_bytes;
	enum engram_status status =
		engram_segment_reserve(memory->writer, begin, bytes, err);

	if (!status)
		atomic_fetch_add(memory->touched, bytes);
	atomic_store(&memory->stretch[i],
		     status ? STRETCH_NONE : STRETCH_THERE);
	loader_memory_wake(memory);
	return status;
}

/* Until another thread's work on it has ended, well or not. */
static void wait_for(struct loader_memory *memory, uint64_t i,
		     const _Atomic bool *stop)
{
	pthread_mutex_lock(&memory->lock);
	while (atomic_load(&memory->stretch[i]) == STRETCH_BUSY &&
	       !atomic_load(stop))
		pthread_cond_wait(&memory->changed, &memory->lock);
	pthread_mutex_unlock(&memory->lock);
}

static enum engram_status have_one(struct loader_memory *memory, uint64_t i,
				   bool wait, const _Atomic bool *stop,
				   struct engram_error *err)
{
	uint8_t state;

	while (!atomic_load(stop)) {
		state = STRETCH_NONE;
		if (atomic_compare_exchange_strong(&memory->stretch[i], &state,
						   STRETCH_BUSY))
			return touch(memory, i, err);
		if (state == STRETCH_THERE || !wait)
			return ENGRAM_OK;
		wait_for(memory, i, stop);
	}
	return ENGRAM_OK;
}

enum engram_status loader_memory_have(struct loader_memory *memory,
				      uint64_t begin, uint64_t end, bool wait,
				      const _Atomic bool *stop,
				      struct engram_error *err)
{
	uint64_t i = begin / memory->stretch_bytes;
	enum engram_status status = ENGRAM_OK;

	for (; !status && i * memory->stretch_bytes < end; i++)
		status = have_one(memory, i, wait, stop, err);
	return status;
}

enum engram_status loader_memory_have_rows(struct loader_memory *memory,
					   uint64_t row_begin, uint64_t row_end,
					   bool wait, const _Atomic bool *stop,
					   struct engram_error *err)
{
	const struct engram_segment_header *h = memory->header;
	enum engram_status status;

	if (!memory->writer)
		return ENGRAM_OK;
	status = loader_memory_have(
		memory, h->codes_offset + row_begin * h->code_stride,
		h->codes_offset + row_end * h->code_stride, wait, stop, err);
	if (status || h->record_layout != ENGRAM_SPLIT || !h->scale_stride)
		return status;
	return loader_memory_have(
		memory, h->scales_offset + row_begin * h->scale_stride,
		h->scales_offset + row_end * h->scale_stride, wait, stop, err);
}
