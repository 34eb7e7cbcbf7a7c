/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registration takes some 30 to 70 ms a GiB, and copying longer: it runs
 * in a thread of its own, range by range, while the engine does other things.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "device.h"
#include "launch.h"
#include "table.h"

static int64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Where a range of host memory is on the device. */
static char *copy_of(const struct engram_cuda_table *t,
		     const struct cuda_range *range)
{
	const struct cuda_range *first = range;

	while (first > t->ranges.list && first[-1].mapping == range->mapping)
		first--;
	return t->copies[range->mapping] + (range->address - first->address);
}

static enum engram_status copy_range(struct engram_cuda_table *t, uint32_t i,
				     struct engram_error *err)
{
	const struct cuda_range *range = &t->ranges.list[i];

	return cuda_upload(copy_of(t, range), range->address, range->bytes,
			   err);
}

static enum engram_status each_range(struct engram_cuda_table *t,
				     struct engram_error *err)
{
	int64_t start = now();
	enum engram_status status = ENGRAM_OK;

	for (uint32_t i = 0; i < t->ranges.count && !status; i++) {
		if (atomic_load(&t->cancel))
			return engram_error_set(err, ENGRAM_ECANCELED,
						"detached before it was ready");
		if (t->placement == ENGRAM_CUDA_DEVICE)
			status = copy_range(t, i, err);
		else
			status = cuda_register_next(&t->ranges, t->read_only,
						    err);
		if (!status)
			atomic_fetch_add(&t->done_bytes,
					 t->ranges.list[i].bytes);
		atomic_store(&t->nanoseconds, (uint64_t)(now() - start));
	}
	return status;
}

/* Nobody may write to the rows, least of all when they could not be
 * registered: `status` is that of the registration, and comes first. */
static enum engram_status protect(struct engram_cuda_table *t,
				  enum engram_status status,
				  struct engram_error *err)
{
	enum engram_status protected;

	if (t->placement != ENGRAM_CUDA_REGISTERED || t->read_only)
		return status;
	protected = engram_protect(t->table);
	if (status || !protected)
		return status;
	*err = *engram_last_error();
	return protected;
}

enum engram_status cuda_prepare(struct engram_cuda_table *t,
				struct engram_error *err)
{
	enum engram_status status;
	struct cuda_scope scope;

	status = cuda_enter(&scope, t->device, err);
	if (!status)
		status = each_range(t, err);
	status = protect(t, status, err);
	if (status)
		cuda_unregister(&t->ranges);
	/* The scope ends with the thread.  To leave it for device 0, which
	 * threads begin with, would start a context there. */
	return status;
}

static void *run(void *arg)
{
	struct engram_cuda_table *t = arg;
	struct engram_error err;
	enum engram_status status = cuda_prepare(t, &err);

	if (status) {
		t->failure = err;
		atomic_store(&t->done_bytes, 0);
	}
	pthread_mutex_lock(&t->lock);
	atomic_store(&t->state, status ? CUDA_FAILED : CUDA_READY);
	pthread_cond_broadcast(&t->changed);
	pthread_mutex_unlock(&t->lock);
	return NULL;
}

enum engram_status cuda_prepare_start(struct engram_cuda_table *t,
				      struct engram_error *err)
{
	sigset_t all, before;
	int rc;

	/* signals are for the program's own threads */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	rc = pthread_create(&t->thread, NULL, run, t);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (rc) {
		enum engram_status status =
			engram_error_sys(err, rc, "starting a thread");

		engram_error_fix(err, "raise the limit of threads (ulimit -u, "
				      "pids.max of the control group)");
		return status;
	}
	t->thread_started = 1;
	return ENGRAM_OK;
}

void cuda_prepare_stop(struct engram_cuda_table *t)
{
	if (!t->thread_started)
		return;
	atomic_store(&t->cancel, 1);
	pthread_join(t->thread, NULL);
	t->thread_started = 0;
}
