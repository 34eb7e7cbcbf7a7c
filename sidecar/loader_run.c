/* SPDX-License-Identifier: Apache-2.0 */
#include "loader_run.h"

#include <stdlib.h>

#include "clock.h"
#include "loader_threads.h"
#include "numa.h"

#define MS UINT64_C(1000000)
/* Between looks at whether it was cancelled. */
#define LOOK_NS (20 * MS)
/* Reads that do not come in that time after a stop are not waited for. */
#define GRACE_NS (300 * MS)
/* A setting shows its rate once what was in flight before has arrived. */
#define SETTLE_NS      (40 * MS)
#define SAMPLE_NS      (80 * MS)
#define SAMPLE_BYTES   (UINT64_C(64) << 20)
#define SAMPLE_MOST_NS (1000 * MS)

struct crew {
	struct loader_shared *shared;
	struct loader_worker *workers[LOADER_THREADS_MAX];
	uint32_t num_workers;
	pthread_t populators[LOADER_THREADS_MAX];
	uint32_t num_populators;
	uint64_t stopped_ns;	  /* when it was; 0: it was not */
	struct loader_tune *tune; /* NULL: settings stay as they are */
	bool settling;
	uint64_t since_ns, since_bytes; /* of the sample */
};

static enum engram_status start(struct crew *crew, uint32_t threads,
				uint32_t populators, struct engram_error *err)
{
	struct loader_shared *shared = crew->shared;
	enum engram_status status;
	int r = 0;

	shared->working = threads;
	while (!r && crew->num_workers < threads) {
		r = loader_worker_start(shared, crew->num_workers,
					&crew->workers[crew->num_workers]);
		crew->num_workers += !r;
	}
	pthread_mutex_lock(&shared->lock);
	shared->working -= threads - crew->num_workers;
	pthread_mutex_unlock(&shared->lock);
	if (!crew->num_workers && threads) {
		status = engram_error_sys(err, r, "start a loader thread");
		engram_error_fix(err, "raise the limit of threads (TasksMax, "
				      "RLIMIT_NPROC)");
		return status;
	}
	/* Without them, workers see to their memory themselves. */
	while (!r && crew->num_populators < populators) {
		r = pthread_create(&crew->populators[crew->num_populators],
				   NULL, loader_populate, shared);
		crew->num_populators += !r;
	}
	return ENGRAM_OK;
}

/* Who waits for a drive that does not answer. */
static void leave_waiting(struct crew *crew)
{
	uint32_t i, left = 0;

	for (i = 0; i < crew->num_workers; i++)
		if (crew->workers[i] && loader_worker_leave(crew->workers[i])) {
			crew->workers[i] = NULL;
			left++;
		}
	pthread_mutex_lock(&crew->shared->lock);
	crew->shared->working -= left;
	pthread_mutex_unlock(&crew->shared->lock);
}

static void sample(struct crew *crew, uint64_t now)
{
	const uint64_t bytes = atomic_load(&crew->shared->bytes_read);
	const uint64_t ns = now - crew->since_ns;
	struct loader_setting next;

	if (crew->settling) {
		if (ns < SETTLE_NS)
			return;
		crew->settling = false;
		crew->since_ns = now;
		crew->since_bytes = bytes;
		return;
	}
	if (ns < SAMPLE_MOST_NS &&
	    (ns < SAMPLE_NS || bytes - crew->since_bytes < SAMPLE_BYTES))
		return;
	if (loader_tune_next(crew->tune, (double)(bytes - crew->since_bytes) /
						 (double)ns)) {
		next = loader_tune_now(crew->tune);
	} else {
		next = loader_tune_best(crew->tune);
		crew->tune = NULL;
	}
	atomic_store(&crew->shared->setting, loader_setting_pack(next));
	crew->settling = true;
	crew->since_ns = now;
}

static void look(struct crew *crew)
{
	struct loader_shared *shared = crew->shared;
	const uint64_t now = clock_ns();

	if (atomic_load(&shared->progress->cancel) &&
	    !atomic_load(&shared->stop))
		loader_stop(shared);
	if (!atomic_load(&shared->stop)) {
		if (crew->tune)
			sample(crew, now);
	} else if (!crew->stopped_ns) {
		crew->stopped_ns = now;
	} else if (now - crew->stopped_ns > GRACE_NS) {
		leave_waiting(crew);
	}
}

static struct timespec from_now(uint64_t ns)
{
	const uint64_t at = clock_ns() + ns;

	return (struct timespec){.tv_sec = (time_t)(at / (1000 * MS)),
				 .tv_nsec = (long)(at % (1000 * MS))};
}

static void conduct(struct crew *crew)
{
	struct loader_shared *shared = crew->shared;
	struct timespec until;

	pthread_mutex_lock(&shared->lock);
	while (shared->working) {
		until = from_now(LOOK_NS);
		pthread_cond_clockwait(&shared->changed, &shared->lock,
				       CLOCK_MONOTONIC, &until);
		pthread_mutex_unlock(&shared->lock);
		look(crew);
		pthread_mutex_lock(&shared->lock);
	}
	pthread_mutex_unlock(&shared->lock);
}

enum engram_status loader_run(struct loader_shared *shared, uint32_t *threads,
			      uint32_t populators, struct loader_tune *tune,
			      bool *tuned, struct engram_error *err)
{
	struct crew crew = {.shared = shared,
			    .tune = tune,
			    .settling = true,
			    .since_ns = clock_ns()};
	enum engram_status status;
	cpu_set_t before;
	uint32_t i;

	numa_go_near(shared->cores, &before);
	status = start(&crew, *threads, populators, err);
	numa_go_back(shared->cores, &before);
	if (!status)
		conduct(&crew);
	loader_queue_end(&shared->queue);
	for (i = 0; i < crew.num_populators; i++)
		pthread_join(crew.populators[i], NULL);
	for (i = 0; i < crew.num_workers; i++)
		if (crew.workers[i])
			loader_worker_join(crew.workers[i]);
	*threads = crew.num_workers;
	*tuned = tune && !crew.tune;
	return status;
}
