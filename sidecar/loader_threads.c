/* SPDX-License-Identifier: Apache-2.0 */
#include "loader_threads.h"

#include <pthread.h>
#include <sched.h>

#include "clock.h"
#include "loader.h"

#define THREADS_DEFAULT_MAX 8u

uint32_t loader_threads_wanted(uint32_t configured)
{
	cpu_set_t cpus;
	uint32_t n = 1;

	if (configured)
		return configured < LOADER_THREADS_MAX ? configured
						       : LOADER_THREADS_MAX;
	if (sched_getaffinity(0, sizeof(cpus), &cpus) == 0)
		n = (uint32_t)CPU_COUNT(&cpus);
	return n < THREADS_DEFAULT_MAX ? n : THREADS_DEFAULT_MAX;
}

enum engram_status loader_threads_run(uint32_t *threads, void *(*work)(void *),
				      void *ctx, struct engram_error *err)
{
	pthread_t ids[LOADER_THREADS_MAX];
	enum engram_status status;
	uint32_t i, n;
	int r = 0;

	for (n = 0; n < *threads; n++) {
		r = pthread_create(&ids[n], NULL, work, ctx);
		if (r)
			break;
	}
	for (i = 0; i < n; i++)
		pthread_join(ids[i], NULL);
	if (!n && *threads) {
		status = engram_error_sys(err, r, "start a loader thread");
		engram_error_fix(err, "raise the limit of threads (TasksMax, "
				      "RLIMIT_NPROC)");
		return status;
	}
	*threads = n;
	return ENGRAM_OK;
}

void loader_span_begin(struct loader_span *span)
{
	uint64_t never = 0;

	if (!atomic_load(&span->begin_ns))
		atomic_compare_exchange_strong(&span->begin_ns, &never,
					       clock_ns());
}

void loader_span_end(struct loader_span *span)
{
	atomic_store(&span->end_ns, clock_ns());
}
