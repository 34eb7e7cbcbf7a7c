/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From one generation to the next while kernels, and graphs that were captured,
 * read the handle's descriptors: the next one becomes ready in a handle of its
 * own, whose block is then copied over the one in use, in stream order; once
 * that has happened nothing reads the memory of before.
 */
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "check.h"
#include "device.h"
#include "launch.h"
#include "table.h"

#define RETRY_NS INT64_C(100000000) /* after a failure */

static int64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void next_free(struct engram_cuda_table *next)
{
	if (!next)
		return;
	cuda_memory_free(next);
	if (next->over)
		engram_cuda_ignore(cudaEventDestroy(next->over));
	free(next);
}

/* ---- the thread ---- */

/* Copies are of what a generation was before it was overwritten in place. */
static int copies_differ(const struct engram_cuda_table *t,
			 const struct engram_cuda_table *next)
{
	struct engram_table_info was, is;

	return t->placement == ENGRAM_CUDA_DEVICE &&
	       (engram_table_info(t->table, &was) ||
		engram_table_info(next->table, &is) ||
		strcmp(was.content_id, is.content_id) != 0);
}

static int same_memory(const struct engram_cuda_table *t,
		       const struct engram_cuda_table *next)
{
	if (copies_differ(t, next))
		return 0;
	for (uint32_t i = 0; i < t->num_layers; i++)
		for (uint32_t m = 0; m < t->layers[i].num_mappings; m++)
			if (t->layers[i].mapping[m].address !=
			    next->layers[i].mapping[m].address)
				return 0;
	return 1;
}

/* `next` has its table; make all of it that the device reads. */
static enum engram_status make_ready(struct engram_cuda_table *t,
				     struct engram_cuda_table *next,
				     struct engram_error *err)
{
	enum engram_status status = cuda_describe(next, err);

	if (status)
		return status;
	next->same_memory = same_memory(t, next);
	if (next->same_memory)
		for (uint32_t i = 0; i < t->num_layers; i++) {
			struct engram_rows *rows = &next->sources[i].rows;

			rows->codes = t->sources[i].rows.codes;
			rows->scales = t->sources[i].rows.scales;
		}
	status = cuda_memory_make(next, err);
	if (!status && next->block_bytes != t->block_bytes)
		status = engram_error_set(err, ENGRAM_EGEOMETRY,
					  "hash parameters take another size");
	if (!status)
		status = engram_cuda_status(
			cudaEventCreateWithFlags((cudaEvent_t *)&next->over,
						 cudaEventDisableTiming),
			"cudaEventCreateWithFlags", err);
	return status ? status : cuda_prepare(next, err);
}

static enum engram_status prepare_next(struct engram_cuda_table *t,
				       struct engram_error *err)
{
	struct engram_cuda_table *next = t->next;
	enum engram_status status;
	struct cuda_scope scope;

	status = engram_table_prepare(t->table, &next->generation);
	if (status) {
		*err = *engram_last_error();
		return status;
	}
	if (!next->generation)
		return ENGRAM_OK;
	/* It is only looked at. */
	next->table = (engram_table *)engram_table_prepared(t->table);
	status = cuda_enter(&scope, t->device, err);
	if (!status)
		status = make_ready(t, next, err);
	/* The scope ends with the thread, as in prepare.c. */
	return status;
}

/* Before it is freed: gather_rescue.c and cuda_next_stop() look under the
 * lock. */
static void forget_next(struct engram_cuda_table *t)
{
	pthread_mutex_lock(&t->lock);
	t->next = NULL;
	pthread_mutex_unlock(&t->lock);
}

static void *run_prepare(void *arg)
{
	struct engram_cuda_table *t = arg, *next = t->next;
	enum engram_status status = prepare_next(t, &t->next_failure);
	enum cuda_next_state state = status		? CUDA_NEXT_FAILED
				     : next->generation ? CUDA_NEXT_PREPARED
							: CUDA_NEXT_RETIRED;

	if (state != CUDA_NEXT_PREPARED) {
		forget_next(t);
		next_free(next);
	}
	atomic_store(&t->next_state, state);
	return NULL;
}

/* On the handle's device. */
static void retire(struct engram_cuda_table *t)
{
	struct engram_cuda_table *old = t->next;

	/* On an error the context is gone, and with it all that reads. */
	engram_cuda_ignore(cudaEventSynchronize(old->over));
	forget_next(t);
	cuda_unregister(&old->ranges);
	engram_detach(old->table);
	next_free(old);
	atomic_store(&t->next_state, CUDA_NEXT_RETIRED);
}

static void *run_retire(void *arg)
{
	struct engram_cuda_table *t = arg;
	struct engram_error err;
	struct cuda_scope scope;

	/* It was current when this was prepared: nothing could be done about
	 * a failure. */
	(void)cuda_enter(&scope, t->device, &err);
	retire(t);
	return NULL;
}

static int start(struct engram_cuda_table *t, enum cuda_next_state state,
		 void *(*run)(void *))
{
	sigset_t all, before;
	int rc;

	atomic_store(&t->next_state, state);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	rc = pthread_create(&t->next_thread, NULL, run, t);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	t->next_started = !rc;
	return rc;
}

static void join(struct engram_cuda_table *t)
{
	if (t->next_started)
		pthread_join(t->next_thread, NULL);
	t->next_started = 0;
}

void cuda_next_stop(struct engram_cuda_table *t)
{
	pthread_mutex_lock(&t->lock);
	if (t->next && atomic_load(&t->next_state) == CUDA_NEXT_PREPARING)
		atomic_store(&t->next->cancel, 1);
	pthread_mutex_unlock(&t->lock);
	join(t);
	next_free(t->next);
	t->next = NULL;
}

/* ---- calls ---- */

static enum engram_status under_way(const char *what, struct engram_error *err)
{
	engram_error_set(err, ENGRAM_ENOTREADY, "%s", what);
	engram_error_fix(err, "go on with what there is, and call again at a "
			      "later step");
	return ENGRAM_ENOTREADY;
}

static enum engram_status begin(struct engram_cuda_table *t,
				struct engram_error *err)
{
	struct engram_cuda_table *next = calloc(1, sizeof(*next));
	int rc;

	if (!next)
		return engram_error_set(err, ENGRAM_ENOMEM,
					"no memory for a generation");
	next->device = t->device;
	next->placement = t->placement;
	next->read_only = t->read_only;
	next->chunk_bytes = t->chunk_bytes;
	next->epoch = t->epoch + 1;
	t->next = next;
	rc = start(t, CUDA_NEXT_PREPARING, run_prepare);
	if (!rc)
		return under_way("the next generation is being prepared", err);
	atomic_store(&t->next_state, CUDA_NEXT_NONE);
	t->next = NULL;
	free(next);
	return engram_error_sys(err, rc, "starting a thread");
}

static enum engram_status prepare(struct engram_cuda_table *t,
				  uint64_t *generation,
				  struct engram_error *err)
{
	struct engram_table_info info;

	switch (atomic_load(&t->next_state)) {
	case CUDA_NEXT_PREPARING:
		return under_way("the next generation is being prepared", err);
	case CUDA_NEXT_RETIRING:
		return under_way("the generation before is being let go of",
				 err);
	case CUDA_NEXT_PREPARED:
		*generation = t->next->generation;
		return ENGRAM_OK;
	case CUDA_NEXT_FAILED:
		if (t->next_started) {
			join(t);
			t->next_try = now() + RETRY_NS;
		}
		if (now() < t->next_try) {
			*err = t->next_failure;
			return err->status;
		}
		break;
	default:
		join(t);
	}
	if (engram_table_info(t->table, &info)) {
		*err = *engram_last_error();
		return err->status;
	}
	if (!t->parked && engram_table_poll(t->table) == info.generation) {
		atomic_store(&t->next_state, CUDA_NEXT_NONE);
		return ENGRAM_OK;
	}
	return begin(t, err);
}

enum engram_status engram_cuda_table_prepare(engram_cuda_table *table,
					     uint64_t *generation)
{
	struct engram_cuda_progress progress;
	struct engram_error err;
	enum engram_status status;

	*generation = 0;
	/* also of the fork */
	status = engram_cuda_progress(table, &progress);
	if (status)
		return status;
	if (!progress.ready)
		return engram_cuda_wait(table, 0);
	status = prepare(table, generation, &err);
	return status ? engram_set_last_error(&err) : ENGRAM_OK;
}

/* From here on the handle's calls, too, go by the next generation. */
static void exchange(struct engram_cuda_table *t)
{
	struct engram_cuda_table *next = t->next;

	t->epoch = next->epoch;
	memcpy(t->layers, next->layers, sizeof(t->layers));
	for (uint32_t i = 0; i < t->num_layers; i++)
		t->sources[i].rows = next->sources[i].rows;
	if (!next->same_memory) {
		struct cuda_ranges ranges = t->ranges;
		char **copies = t->copies;

		t->ranges = next->ranges;
		t->copies = next->copies;
		next->ranges = ranges;
		next->copies = copies;
		atomic_store(&t->done_bytes, atomic_load(&next->done_bytes));
		atomic_store(&t->nanoseconds, atomic_load(&next->nanoseconds));
		t->device_bytes = next->device_bytes;
	}
}

/* In stream order: kernels before it read the old generation, those after it
 * the new one. */
static enum engram_status copy_block(struct engram_cuda_table *t,
				     engram_stream stream,
				     struct engram_error *err)
{
	struct engram_cuda_table *next = t->next;
	enum engram_status status;

	status = engram_cuda_status(
		cudaMemcpyAsync((char *)t->block + CUDA_BLOCK_KEPT,
				(char *)next->block + CUDA_BLOCK_KEPT,
				t->block_bytes - CUDA_BLOCK_KEPT,
				cudaMemcpyDeviceToDevice, stream),
		"changing over: cudaMemcpyAsync", err);
	if (status)
		return status;
	/* It can not be taken back: without the event, wait here. */
	if (cudaEventRecord(next->over, stream)) {
		engram_cuda_ignore(cudaGetLastError());
		engram_cuda_ignore(cudaStreamSynchronize(stream));
	}
	return ENGRAM_OK;
}

static enum engram_status refresh(struct engram_cuda_table *t,
				  uint64_t generation, engram_stream stream,
				  struct engram_error *err)
{
	engram_table *old = NULL;
	enum engram_status status;
	struct cuda_scope scope;

	if (atomic_load(&t->next_state) != CUDA_NEXT_PREPARED ||
	    (generation && t->next->generation != generation)) {
		engram_error_set(err, ENGRAM_EGONE,
				 "generation %" PRIu64 " is not prepared",
				 generation);
		engram_error_fix(err, "call engram_cuda_table_prepare until it "
				      "gives a generation");
		return ENGRAM_EGONE;
	}
	status = cuda_enter(&scope, t->device, err);
	if (status)
		return status;
	status = cuda_check_not_capturing(stream, "change over between replays",
					  err);
	if (!status)
		status = copy_block(t, stream, err);
	if (status) {
		cuda_leave(&scope);
		return status;
	}
	join(t);
	/* gather_rescue.c finds either generation, or both */
	pthread_mutex_lock(&t->lock);
	/* Nobody else prepares this table: it is what next->table was. */
	engram_table_swap(t->table, t->next->generation, &old);
	t->parked = 0;
	exchange(t);
	t->next->table = old;
	atomic_store(&t->next_state, CUDA_NEXT_RETIRING);
	pthread_mutex_unlock(&t->lock);
	if (start(t, CUDA_NEXT_RETIRING, run_retire))
		retire(t);
	cuda_leave(&scope);
	return ENGRAM_OK;
}

enum engram_status engram_cuda_table_refresh(engram_cuda_table *table,
					     uint64_t generation,
					     engram_stream stream)
{
	struct engram_cuda_progress progress;
	struct engram_error err;
	enum engram_status status = engram_cuda_progress(table, &progress);

	if (status)
		return status;
	status = refresh(table, generation, stream, &err);
	return status ? engram_set_last_error(&err) : ENGRAM_OK;
}

static enum engram_status park(struct engram_cuda_table *t,
			       engram_stream stream, struct engram_error *err)
{
	enum engram_status status;
	struct cuda_scope scope;

	status = cuda_enter(&scope, t->device, err);
	if (status)
		return status;
	status = cuda_check_not_capturing(stream, "park between replays", err);
	if (!status)
		status = engram_cuda_status(cudaStreamSynchronize(stream),
					    "parking: cudaStreamSynchronize",
					    err);
	if (!status) {
		/* What is prepared is a lease that does not park. */
		cuda_next_stop(t);
		atomic_store(&t->next_state, CUDA_NEXT_NONE);
	}
	cuda_leave(&scope);
	if (status)
		return status;
	status = engram_table_park(t->table);
	if (status)
		*err = *engram_last_error();
	t->parked = !status;
	return status;
}

enum engram_status engram_cuda_table_park(engram_cuda_table *table,
					  engram_stream stream)
{
	struct engram_cuda_progress progress;
	struct engram_error err;
	enum engram_status status = engram_cuda_progress(table, &progress);

	if (!status && !progress.ready)
		status = engram_cuda_wait(table, 0);
	if (status)
		return status;
	status = park(table, stream, &err);
	return status ? engram_set_last_error(&err) : ENGRAM_OK;
}
