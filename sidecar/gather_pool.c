/* SPDX-License-Identifier: Apache-2.0 */
#include "gather_pool.h"

#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "clock.h"
#include "futex.h"
#include "log.h"
#include "thread.h"

#define THREADS_DEFAULT_MAX 8u

static uint32_t threads_wanted(const struct gather_options *options)
{
	cpu_set_t cpus;
	uint32_t n = 1;

	if (options->threads)
		return options->threads;
	if (options->num_cores)
		return options->num_cores;
	if (sched_getaffinity(0, sizeof(cpus), &cpus) == 0)
		n = (uint32_t)CPU_COUNT(&cpus) / 2;
	n = n < THREADS_DEFAULT_MAX ? n : THREADS_DEFAULT_MAX;
	return n ? n : 1;
}

/* Names and places are for people and for speed: without them all works. */
static void set_place(const struct gather_worker *w)
{
	const struct gather_options *o = &w->pool->options;
	char name[16];
	cpu_set_t cpus;
	int core, r;

	snprintf(name, sizeof(name), "gather/%u", w->index);
	pthread_setname_np(w->thread, name);
	if (!o->num_cores)
		return;
	core = o->cores[w->index % o->num_cores];
	CPU_ZERO(&cpus);
	CPU_SET(core, &cpus);
	r = pthread_setaffinity_np(w->thread, sizeof(cpus), &cpus);
	if (r)
		log_warn("gather thread not pinned", LOG_I("core", core),
			 LOG_S("error", strerror(r)));
}

enum engram_status gather_pool_start(struct gather_pool *pool,
				     const struct gather_options *options,
				     struct engram_error *err)
{
	uint32_t wanted = threads_wanted(options), i;
	int r = 0;

	memset(pool, 0, sizeof(*pool));
	pool->options = *options;
	pool->workers = aligned_alloc(64, wanted * sizeof(*pool->workers));
	if (!pool->workers)
		return engram_error_set(err, ENGRAM_ENOMEM,
					"no memory for gather threads");
	memset(pool->workers, 0, wanted * sizeof(*pool->workers));
	for (i = 0; i < wanted; i++) {
		struct gather_worker *w = &pool->workers[i];

		w->pool = pool;
		w->index = i;
		r = thread_start(&w->thread, gather_worker_main, w);
		if (r)
			break;
		set_place(w);
		pool->num_workers++;
	}
	if (i == wanted)
		return ENGRAM_OK;
	engram_error_sys(err, r, "start a gather thread");
	engram_error_fix(err, "raise the limit of threads (TasksMax, "
			      "RLIMIT_NPROC), or lower gather.threads");
	gather_pool_join(pool);
	gather_pool_free(pool);
	return err->status;
}

void gather_pool_join(struct gather_pool *pool)
{
	atomic_store(&pool->stop, true);
	gather_pool_wake(pool);
	while (pool->num_workers)
		pthread_join(pool->workers[--pool->num_workers].thread, NULL);
}

void gather_pool_unmap_dead(struct gather_pool *pool)
{
	struct gather_ring *ring, *next;

	if (!atomic_load_explicit(&pool->dead, memory_order_relaxed))
		return;
	for (ring = atomic_exchange(&pool->dead, NULL); ring; ring = next) {
		next = ring->next_dead;
		gather_ring_free(ring);
	}
}

void gather_pool_free(struct gather_pool *pool)
{
	gather_pool_unmap_dead(pool);
	free(pool->workers);
	pool->workers = NULL;
}

int gather_pool_place(const struct gather_pool *pool)
{
	for (int i = 0; i < GATHER_RINGS_MAX; i++)
		if (!atomic_load(&pool->rings[i]))
			return i;
	return -1;
}

void gather_pool_put(struct gather_pool *pool, int place,
		     struct gather_ring *ring)
{
	atomic_store(&pool->rings[place], ring);
	if (atomic_load(&pool->num_rings) <= (uint32_t)place)
		atomic_store(&pool->num_rings, (uint32_t)place + 1);
	gather_pool_wake(pool);
}

void gather_pool_take(struct gather_pool *pool, int place)
{
	uint32_t n = atomic_load(&pool->num_rings);

	atomic_store(&pool->rings[place], NULL);
	while (n && !atomic_load(&pool->rings[n - 1]))
		n--;
	atomic_store(&pool->num_rings, n);
}

void gather_pool_wake(struct gather_pool *pool)
{
	atomic_store(&pool->last_ns, clock_ns());
	if (atomic_load(&pool->told_asleep))
		gather_tell_asleep(pool, false);
	atomic_fetch_add(&pool->bell, 1);
	futex_wake(&pool->bell, INT_MAX);
	atomic_fetch_add(&pool->work, 1);
	futex_wake(&pool->work, INT_MAX);
}

void gather_pool_passes(const struct gather_pool *pool, uint64_t *passes)
{
	for (uint32_t i = 0; i < pool->num_workers; i++)
		passes[i] = atomic_load(&pool->workers[i].passes);
}

bool gather_pool_passed(const struct gather_pool *pool, const uint64_t *passes)
{
	for (uint32_t i = 0; i < pool->num_workers; i++) {
		const struct gather_worker *w = &pool->workers[i];

		if (atomic_load(&w->passes) == passes[i] &&
		    !atomic_load(&w->parked))
			return false;
	}
	return true;
}

void gather_pool_bury(struct gather_pool *pool, struct gather_ring *ring)
{
	ring->next_dead = atomic_load(&pool->dead);
	while (!atomic_compare_exchange_weak(&pool->dead, &ring->next_dead,
					     ring))
		;
	gather_pool_wake(pool);
}

double gather_worker_cpu_seconds(const struct gather_worker *w)
{
	struct timespec used;
	clockid_t clock;

	if (pthread_getcpuclockid(w->thread, &clock) ||
	    clock_gettime(clock, &used))
		return 0;
	return (double)used.tv_sec + (double)used.tv_nsec / 1e9;
}

void gather_pool_counts(const struct gather_pool *pool,
			struct gather_counts *out)
{
	memset(out, 0, sizeof(*out));
	for (uint32_t i = 0; i < pool->num_workers; i++) {
		const struct gather_worker *w = &pool->workers[i];

		out->rows += atomic_load(&w->rows);
		out->batches += atomic_load(&w->batches);
		out->refused += atomic_load(&w->refused);
		out->cpu_seconds += gather_worker_cpu_seconds(w);
	}
}
