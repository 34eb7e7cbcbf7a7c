/* SPDX-License-Identifier: Apache-2.0 */
#include <signal.h>
#include <time.h>

#include "gather_handle.h"

/*
 * A stream that waits for a flag waits for ever; so a thread looks, now and
 * then, for batches that are overdue, and gives their chunks up.  It writes
 * nothing else there, and a flag only if it is pending for that very batch:
 * engramd may deliver at the same moment.  What the device asks for in the ring
 * of gather_rescue.c it copies; while it does, it looks more often.
 */
#define PERIOD_NS	 2000000
#define PERIOD_RESCUE_NS 50000
#define RESCUE_NS	 200000000 /* after the last */

struct watched {
	uint32_t seq;
	uint64_t since_ns;
};

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Pending is whatever is not an answer to this batch.  Should the device have
 * gone on to the next one by now, that is what it stays. */
static void give_up(struct engram_ring_slot *slot, uint32_t seq)
{
	uint32_t value = engram_ring_flag_of(seq, ENGRAM_RING_GIVEN_UP);

	for (uint32_t i = 0; i < ENGRAM_RING_FLAGS; i++) {
		uint32_t old = __atomic_load_n(&slot->flags[i].value,
					       __ATOMIC_RELAXED);

		if (old >> 2 == seq ? !(old & 3)
				    : engram_ring_seq_before(old >> 2, seq))
			__atomic_compare_exchange_n(&slot->flags[i].value, &old,
						    value, 0, __ATOMIC_ACQ_REL,
						    __ATOMIC_RELAXED);
	}
}

static void look(const struct engram_cuda_gather *g, uint32_t at,
		 struct watched *w, uint64_t now)
{
	struct engram_ring_slot *slot = engram_ring_slot(g->ring, at);
	uint32_t seq = engram_ring_posted(g->ring, at);

	if (seq != w->seq) {
		w->seq = seq;
		w->since_ns = now;
	} else if (seq && now - w->since_ns > g->timeout_ns &&
		   !engram_ring_idle(g->ring, at, seq)) {
		give_up(slot, seq);
	}
}

static struct timespec after(uint64_t ns)
{
	return (struct timespec){(time_t)(ns / 1000000000),
				 (long)(ns % 1000000000)};
}

static void *watch_main(void *arg)
{
	struct watched watched[ENGRAM_RING_SLOTS] = {{0}};
	struct engram_cuda_gather *g = arg;
	uint64_t now, rescued = 0;
	struct timespec deadline;

	pthread_mutex_lock(&g->lock);
	while (!g->stop) {
		now = now_ns();
		for (uint32_t i = 0; i < g->ring->shape.slots; i++)
			look(g, i, &watched[i], now);
		/* the lock is for `stop` */
		pthread_mutex_unlock(&g->lock);
		if (cuda_gather_rescue(g))
			rescued = now_ns();
		pthread_mutex_lock(&g->lock);
		deadline = after(now + (rescued && now < rescued + RESCUE_NS
						? PERIOD_RESCUE_NS
						: PERIOD_NS));
		if (g->stop)
			break;
		pthread_cond_timedwait(&g->stop_cond, &g->lock, &deadline);
	}
	pthread_mutex_unlock(&g->lock);
	return NULL;
}

enum engram_status cuda_gather_watch_start(struct engram_cuda_gather *g,
					   struct engram_error *err)
{
	sigset_t all, before;
	int rc;

	/* signals are for the program's own threads */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	rc = pthread_create(&g->watch, NULL, watch_main, g);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (rc)
		return engram_error_sys(err, rc, "starting a thread");
	g->watch_started = 1;
	return ENGRAM_OK;
}

void cuda_gather_watch_stop(struct engram_cuda_gather *g)
{
	if (!g->watch_started)
		return;
	pthread_mutex_lock(&g->lock);
	g->stop = 1;
	pthread_cond_signal(&g->stop_cond);
	pthread_mutex_unlock(&g->lock);
	pthread_join(g->watch, NULL);
	g->watch_started = 0;
}
