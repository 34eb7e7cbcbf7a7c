/* SPDX-License-Identifier: Apache-2.0 */
#include "loader_worker.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "clock.h"
#include "failpoint.h"
#include "loader_throttle.h"
#include "pack.h"

#define HUGE_PAGE (UINT64_C(2) << 20)
/* A stop is noticed meanwhile. */
#define HELD_MOST_NS UINT64_C(20000000)

/* A block in flight. */
struct slot {
	struct loader_target *target;
	struct loader_block block;
	struct reader_request codes, scales;
	uint64_t codes_skip, scales_skip;
	uint64_t begin; /* of its buffers, in the arena */
};

enum state { STATE_WORKS, STATE_WAITS, STATE_LEFT };

struct loader_worker {
	pthread_t thread;
	_Atomic int state; /* enum state */
	/* What follows is the thread's.  Once it is left, nothing else is. */
	struct loader_shared *shared;
	uint32_t lane;
	struct reader *reader;
	struct pack pack;
	uint8_t *arena; /* blocks in order, as in a ring */
	uint64_t arena_bytes, arena_next;
	struct slot *slots; /* a ring */
	uint32_t num_slots, first, count;
	uint64_t held_ns;	      /* the cap allows no read for so long */
	struct loader_target *target; /* of the claimed chunk */
	uint64_t row, row_end;	      /* of it, still to start */
	struct engram_error err;
};

/* ---- stopping ---- */

void loader_stop(struct loader_shared *shared)
{
	uint32_t i;

	atomic_store(&shared->stop, true);
	loader_queue_end(&shared->queue);
	for (i = 0; i < shared->num_targets; i++)
		loader_memory_wake(&shared->targets[i].memory);
}

void loader_fail(struct loader_shared *shared, enum engram_status status,
		 const struct engram_error *err)
{
	pthread_mutex_lock(&shared->lock);
	if (!shared->status) {
		shared->status = status;
		shared->err = *err;
	}
	pthread_mutex_unlock(&shared->lock);
	loader_stop(shared);
}

static bool stopped(const struct loader_shared *shared)
{
	return atomic_load(&shared->stop) ||
	       atomic_load(&shared->progress->cancel);
}

/* Between these two, the worker may be left behind. */
static void wait_begins(struct loader_worker *w)
{
	atomic_store(&w->state, STATE_WAITS);
}

static bool wait_ends(struct loader_worker *w)
{
	int waits = STATE_WAITS;

	return atomic_compare_exchange_strong(&w->state, &waits, STATE_WORKS);
}

bool loader_worker_leave(struct loader_worker *w)
{
	const pthread_t thread = w->thread;
	int waits = STATE_WAITS;

	if (!atomic_compare_exchange_strong(&w->state, &waits, STATE_LEFT))
		return false;
	pthread_detach(thread);
	return true;
}

/* ---- setting up ---- */

static void note_reader(struct loader_worker *w, int fall_back_errno)
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

static enum engram_status open_reader(struct loader_worker *w)
{
	struct loader_shared *shared = w->shared;
	int r = 0, fall_back_errno = 0;
	enum engram_status status;

	if (shared->engine == LOADER_IO_URING) {
		r = reader_uring_open(2 * w->num_slots, w->arena,
				      w->arena_bytes, &w->reader);
		fall_back_errno = -r;
	}
	if (shared->engine == LOADER_PREADV ||
	    (r && shared->wish == LOADER_AUTO))
		r = reader_pread_open(2 * w->num_slots, &w->reader);
	if (!r) {
		note_reader(w, fall_back_errno);
		return ENGRAM_OK;
	}
	status = engram_error_sys(&w->err, -r, "set up a ring of reads");
	engram_error_fix(&w->err, "set loader.engine to \"auto\" or "
				  "\"preadv\", or free some memory");
	return status;
}

/* Huge pages: fewer pieces for the drive to write to. */
static int make_arena(struct loader_worker *w, uint32_t align)
{
	const bool huge = w->arena_bytes >= HUGE_PAGE;

	if (posix_memalign((void **)&w->arena, huge ? HUGE_PAGE : align,
			   w->arena_bytes)) {
		w->arena = NULL;
		return -1;
	}
	if (huge)
		(void)madvise(w->arena, w->arena_bytes, MADV_HUGEPAGE);
	return 0;
}

static enum engram_status set_up(struct loader_worker *w)
{
	struct loader_shared *shared = w->shared;
	enum engram_status status;
	int r = loader_priority_set(shared->priority);

	if (r) {
		pthread_mutex_lock(&shared->lock);
		shared->priority_errno = r;
		pthread_mutex_unlock(&shared->lock);
	}
	w->arena_bytes = shared->arena_bytes;
	w->num_slots = shared->most_depth;
	w->slots = calloc(w->num_slots, sizeof(*w->slots));
	if (!w->slots || make_arena(w, shared->align)) {
		status = engram_error_sys(&w->err, ENOMEM,
					  "%" PRIu64 " bytes of read buffers",
					  w->arena_bytes);
		engram_error_fix(&w->err, "lower loader.threads, queue_depth "
					  "or block_bytes");
		return status;
	}
	status = pack_init(&w->pack, shared->targets[0].header, &w->err);
	return status ? status : open_reader(w);
}

static void free_own(struct loader_worker *w, bool drained)
{
	/* Buffers that the kernel may still write to are given up. */
	if (drained)
		free(w->arena);
	if (w->pack.hash)
		pack_free(&w->pack);
	free(w->slots);
	w->slots = NULL;
}

/* ---- reading ---- */

static enum engram_status start_window(struct loader_worker *w,
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

/* Room for `bytes` behind the block that was started last; false while older
 * ones are in the way. */
static bool find_room(struct loader_worker *w, uint64_t bytes, uint64_t *begin)
{
	const uint64_t oldest = w->slots[w->first].begin;

	*begin = w->count ? w->arena_next : 0;
	if (!w->count)
		return true;
	if (w->arena_next > oldest) {
		if (w->arena_bytes - w->arena_next >= bytes)
			return true;
		*begin = 0;
	}
	return *begin + bytes <= oldest;
}

/* Bytes of the arena that a block of so many rows takes at most. */
static uint64_t slot_bytes(const struct loader_plan *plan, uint64_t rows,
			   uint64_t align)
{
	return loader_plan_window_max(rows * plan->code_bytes, align) +
	       loader_plan_window_max(rows * plan->scale_bytes, align);
}

uint64_t loader_worker_room(const struct loader_plan *plan,
			    struct loader_setting setting, uint32_t align)
{
	return setting.depth *
	       slot_bytes(plan,
			  loader_plan_block_rows(plan, setting.block_bytes),
			  align);
}

static bool claim(struct loader_worker *w)
{
	struct loader_chunk chunk;

	if (w->row != w->row_end)
		return true;
	if (!loader_queue_take(&w->shared->queue, w->lane, &chunk))
		return false;
	w->target = &w->shared->targets[chunk.layer];
	loader_span_begin(&w->target->progress->reading);
	w->row = chunk.chunk * w->target->plan.chunk_rows;
	w->row_end = loader_plan_chunk_end(&w->target->plan, chunk.chunk);
	return true;
}

/* May so many be read now? */
static bool allowed(struct loader_worker *w, uint64_t bytes)
{
	const uint64_t rate = w->shared->bytes_per_second;

	w->held_ns = rate ? loader_throttle_take(loader_throttle(), rate, bytes,
						 clock_ns())
			  : 0;
	return !w->held_ns;
}

/* All that it had in flight is done. */
static void wait_for_cap(const struct loader_worker *w)
{
	const uint64_t ns =
		w->held_ns < HELD_MOST_NS ? w->held_ns : HELD_MOST_NS;

	nanosleep(&(struct timespec){.tv_nsec = (long)ns}, NULL);
}

enum start { STARTED, NOT_NOW, NO_MORE };

static enum start start_block(struct loader_worker *w,
			      struct loader_setting setting,
			      enum engram_status *status)
{
	const struct loader_plan *plan;
	struct slot *slot;
	uint64_t rows, begin;

	if (!claim(w))
		return NO_MORE;
	plan = &w->target->plan;
	rows = loader_plan_block_rows(plan, setting.block_bytes);
	if (!find_room(w, slot_bytes(plan, rows, w->shared->align), &begin) ||
	    !allowed(w, rows * (plan->code_bytes + plan->scale_bytes)))
		return NOT_NOW;
	slot = &w->slots[(w->first + w->count++) % w->num_slots];
	slot->target = w->target;
	slot->begin = begin;
	slot->block = loader_plan_block(plan, w->row, rows);
	slot->codes.buffer = w->arena + begin;
	slot->scales.buffer = slot->codes.buffer +
			      loader_plan_window_max(rows * plan->code_bytes,
						     w->shared->align);
	w->arena_next = begin + slot_bytes(plan, rows, w->shared->align);
	w->row += slot->block.rows;
	*status = start_window(w, &slot->codes, &slot->block, plan->codes,
			       plan->code_bytes, &slot->codes_skip);
	if (!*status && plan->scale_bytes)
		*status = start_window(w, &slot->scales, &slot->block,
				       plan->scales, plan->scale_bytes,
				       &slot->scales_skip);
	return STARTED;
}

/* As many as are to be in flight; false: there are no more. */
static bool start_blocks(struct loader_worker *w, enum engram_status *status)
{
	const struct loader_setting setting =
		loader_setting_unpack(atomic_load(&w->shared->setting));
	enum start start = STARTED;

	while (start == STARTED && !*status && w->count < setting.depth)
		start = start_block(w, setting, status);
	return start != NO_MORE;
}

/* ---- packing ---- */

static void count_done(struct loader_worker *w, const struct slot *slot)
{
	const struct loader_plan *plan = &slot->target->plan;
	const uint64_t bytes =
		slot->block.rows * (plan->code_bytes + plan->scale_bytes);

	struct loader_layer_progress *layer = slot->target->progress;

	if (atomic_fetch_add(&layer->bytes_done, bytes) + bytes ==
	    atomic_load(&layer->bytes_total))
		loader_span_end(&layer->reading);
	atomic_fetch_add(&w->shared->progress->bytes_done, bytes);
}

/* Is the chunk what it is known to be? */
static enum engram_status compare_known(struct loader_worker *w,
					const struct loader_target *target,
					uint64_t chunk)
{
	const struct loader_plan *plan = &target->plan;
	const uint64_t row = chunk * plan->chunk_rows;
	const struct loader_place place =
		loader_plan_place(plan->codes, plan->code_bytes, row);
	const char *path = sources_of(&w->shared->sources, place.file)->path;
	struct engram_error *err = &w->err;

	if (!target->known || target->known[chunk] == target->checksums[chunk])
		return ENGRAM_OK;
	engram_error_set(err, ENGRAM_ECHECKSUM,
			 "rows %" PRIu64 "..%" PRIu64 ", at %" PRIu64
			 " of %s: not the bytes that the manifest was written "
			 "for",
			 row, loader_plan_chunk_end(plan, chunk), place.offset,
			 path);
	engram_error_fix(err, "download the checkpoint again; if it was "
			      "changed on purpose, write the manifest anew "
			      "(engramctl manifest write DIR)");
	engram_error_path(err, "%s", path);
	return ENGRAM_ECHECKSUM;
}

static enum engram_status put_block(struct loader_worker *w,
				    const struct slot *slot)
{
	struct loader_target *target = slot->target;
	const struct loader_plan *plan = &target->plan;
	const struct loader_block *block = &slot->block;
	enum engram_status status = loader_memory_have_rows(
		&target->memory, block->row, block->row + block->rows, true,
		&w->shared->stop, &w->err);

	/* It may be that it was stopped before there was memory. */
	if (status || stopped(w->shared))
		return status;
	if (block->row == block->chunk * plan->chunk_rows)
		pack_begin(&w->pack, target->base, target->header);
	pack_rows(&w->pack, block->row, block->rows,
		  slot->codes.buffer + slot->codes_skip,
		  plan->scale_bytes ? slot->scales.buffer + slot->scales_skip
				    : NULL);
	if (block->row + block->rows ==
	    loader_plan_chunk_end(plan, block->chunk)) {
		target->checksums[block->chunk] = pack_end(&w->pack);
		loader_plan_drop(plan, &w->shared->sources,
				 block->chunk * plan->chunk_rows,
				 block->row + block->rows);
		status = compare_known(w, target, block->chunk);
	}
	if (status)
		return status;
	status = FAILPOINT_STATUS(load_block, &w->err);
	if (!status)
		count_done(w, slot);
	return status;
}

/* ---- the thread ---- */

static void blame(struct loader_worker *w, const struct loader_target *target)
{
	engram_error_context(&w->err, "layer %" PRId32, target->layer_id);
}

static const struct loader_target *target_of(
	const struct loader_worker *w, const struct reader_request *request)
{
	uint32_t i = 0;

	while (request != &w->slots[i].codes && request != &w->slots[i].scales)
		i++;
	return w->slots[i].target;
}

/* One result, if any comes within a while.  False: it was left meanwhile. */
static bool wait_for_read(struct loader_worker *w, enum engram_status *status)
{
	struct reader_request *request = NULL;
	int result = 0, waited;

	wait_begins(w);
	waited = reader_wait(w->reader, &request, &result);
	if (!wait_ends(w))
		return false;
	*status = reader_act(w->reader, waited, request, result, &w->err);
	if (*status && request)
		blame(w, target_of(w, request));
	if (waited > 0 && result > 0)
		atomic_fetch_add(&w->shared->bytes_read, (uint64_t)result);
	return true;
}

/* False: it was left behind. */
static bool work(struct loader_worker *w, enum engram_status *status)
{
	struct slot *slot;
	bool more = true;

	while (!*status && !stopped(w->shared)) {
		if (more)
			more = start_blocks(w, status);
		if (*status)
			blame(w, w->target);
		if (*status || (!w->count && !more))
			break;
		if (!w->count) {
			wait_for_cap(w);
			continue;
		}
		slot = &w->slots[w->first];
		if (slot->codes.pending || slot->scales.pending) {
			if (!wait_for_read(w, status))
				return false;
			continue;
		}
		*status = put_block(w, slot);
		if (*status)
			blame(w, slot->target);
		w->first = (w->first + 1) % w->num_slots;
		w->count--;
	}
	return true;
}

static void end(struct loader_worker *w, enum engram_status status)
{
	struct loader_shared *shared = w->shared;

	if (status)
		loader_fail(shared, status, &w->err);
	pthread_mutex_lock(&shared->lock);
	shared->working--;
	pthread_cond_broadcast(&shared->changed);
	pthread_mutex_unlock(&shared->lock);
}

static void *run(void *arg)
{
	struct loader_worker *w = arg;
	enum engram_status status = set_up(w);
	bool left = !status && !work(w, &status), drained;

	/* Errors stop the others while this one waits for its reads. */
	if (status)
		loader_fail(w->shared, status, &w->err);
	if (!left)
		wait_begins(w);
	drained = reader_close(w->reader);
	if (!left)
		left = !wait_ends(w);
	free_own(w, drained);
	if (left)
		free(w);
	else
		end(w, status);
	return NULL;
}

int loader_worker_start(struct loader_shared *shared, uint32_t lane,
			struct loader_worker **out)
{
	struct loader_worker *w = calloc(1, sizeof(*w));
	int r;

	*out = NULL;
	if (!w)
		return ENOMEM;
	w->shared = shared;
	w->lane = lane;
	r = pthread_create(&w->thread, NULL, run, w);
	if (r)
		free(w);
	else
		*out = w;
	return r;
}

void loader_worker_join(struct loader_worker *w)
{
	pthread_join(w->thread, NULL);
	free(w);
}
