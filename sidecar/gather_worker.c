/* SPDX-License-Identifier: Apache-2.0 */
#include <limits.h>
#include <string.h>

#include "clock.h"
#include "futex.h"
#include "gather_pool.h"

/* Every so many units a thread takes any batch, not a small one first: many
 * small ones can not starve a large one. */
#define ANY_TURN     4
#define SPINS	     8
#define NAP_FIRST_NS 50000
#define NAP_LAST_NS  1000000
#define TRAFFIC_NS   20000 /* see note_traffic */
#define HELP_NS	     1000  /* then a thread is not coming for its own unit */

static void relax(void)
{
#ifdef __x86_64__
	__builtin_ia32_pause();
#endif
}

/* ---- finding work ---- */

static void count(_Atomic uint64_t *counter, uint64_t n)
{
	atomic_store_explicit(
		counter,
		atomic_load_explicit(counter, memory_order_relaxed) + n,
		memory_order_relaxed);
}

/* Others to help with the units of a batch. */
static void call_others(struct gather_pool *pool, uint32_t units)
{
	uint32_t asleep = atomic_load(&pool->sleepers);
	uint32_t wanted = units - 1;

	if (!asleep || !wanted)
		return;
	atomic_fetch_add(&pool->work, 1);
	futex_wake(&pool->work, (int)(asleep < wanted ? asleep : wanted));
}

/* There is traffic; a word that all threads read, so not at every unit. */
static void note_traffic(struct gather_pool *pool)
{
	uint64_t now = clock_ns();

	if (now - atomic_load_explicit(&pool->last_ns, memory_order_relaxed) >
	    TRAFFIC_NS)
		atomic_store_explicit(&pool->last_ns, now,
				      memory_order_relaxed);
}

/* What this thread knows of the ring in that place. */
static struct gather_known *known(struct gather_worker *w, uint32_t place,
				  const struct gather_ring *ring)
{
	struct gather_known *k = &w->known[place];

	if (k->ring == ring->id)
		return k;
	k->ring = ring->id;
	memcpy(k->over, ring->start, sizeof(k->over));
	memcpy(k->begun, ring->start, sizeof(k->begun));
	memcpy(k->waited, ring->start, sizeof(k->waited));
	return k;
}

/* Threads that are awake take their own units at once. */
static bool may_help(struct gather_known *k, uint32_t slot, uint32_t seq)
{
	if (k->waited[slot] != seq) {
		k->waited[slot] = seq;
		k->since[slot] = clock_ns();
		return false;
	}
	return clock_ns() - k->since[slot] > HELP_NS;
}

static bool take(struct gather_worker *w, struct gather_known *k,
		 struct gather_ring *ring, uint32_t slot,
		 struct gather_unit *unit)
{
	uint32_t seq = w->plan.post.seq;
	bool help = k->begun[slot] == seq || may_help(k, slot, seq);

	switch (gather_claim(ring, slot, &w->plan, w->index, help, unit)) {
	case GATHER_UNIT:
		if (k->begun[slot] != seq)
			call_others(w->pool, w->plan.units);
		k->begun[slot] = seq;
		note_traffic(w->pool);
		return true;
	case GATHER_NO_MORE:
		k->over[slot] = seq;
		break;
	case GATHER_LATER:
		break;
	}
	return false;
}

/* The next unit of some batch: of a small one, or else of the next ring. */
static bool pick(struct gather_worker *w, struct gather_unit *unit)
{
	struct gather_pool *pool = w->pool;
	uint32_t n = atomic_load(&pool->num_rings), large_slot = 0, at = 0;
	bool any = ++w->turn % ANY_TURN == 0;
	struct gather_ring *large = NULL;

	for (uint32_t i = 0; i < n; i++) {
		uint32_t place = (w->next_ring + i) % n;
		struct gather_ring *ring = atomic_load(&pool->rings[place]);

		for (uint32_t s = 0; ring && s < ring->ring.shape.slots; s++) {
			struct gather_known *k = known(w, place, ring);

			if (engram_ring_posted(&ring->ring, s) == k->over[s] ||
			    !gather_look(ring, s, pool->options.unit_rows,
					 &w->plan))
				continue;
			if (any || w->plan.post.num_rows <= GATHER_SMALL_ROWS) {
				if (take(w, k, ring, s, unit)) {
					w->next_ring = place + 1;
					return true;
				}
			} else if (!large) {
				large = ring;
				large_slot = s;
				at = place;
			}
		}
	}
	if (!large ||
	    !gather_look(large, large_slot, pool->options.unit_rows, &w->plan))
		return false;
	w->next_ring = at + 1;
	return take(w, known(w, at, large), large, large_slot, unit);
}

/* ---- idling ---- */

/* Tell clients whether threads sleep that they had better wake. */
void gather_tell_asleep(struct gather_pool *pool, bool asleep)
{
	uint32_t n = atomic_load(&pool->num_rings);

	atomic_store(&pool->told_asleep, asleep);
	for (uint32_t i = 0; i < n; i++) {
		struct gather_ring *ring = atomic_load(&pool->rings[i]);

		if (ring)
			engram_ring_set_asleep(&ring->ring, asleep);
	}
}

static bool stopped(const struct gather_pool *pool)
{
	return atomic_load_explicit(&pool->stop, memory_order_relaxed);
}

/* The end of a pass: nothing that was found in it is in use any more. */
static void pass(struct gather_worker *w)
{
	atomic_store_explicit(
		&w->passes,
		atomic_load_explicit(&w->passes, memory_order_relaxed) + 1,
		memory_order_seq_cst);
}

static bool find(struct gather_worker *w, struct gather_unit *unit)
{
	pass(w);
	return pick(w, unit);
}

static void sleep_parked(struct gather_worker *w, _Atomic uint32_t *word,
			 uint32_t value, uint64_t ns)
{
	atomic_store(&w->parked, true);
	futex_wait(word, value, ns);
	atomic_store(&w->parked, false);
}

/* Until there is work that others have found, or a client says that some comes.
 */
static bool sleep_idle(struct gather_worker *w, struct gather_unit *unit)
{
	struct gather_pool *pool = w->pool;
	uint32_t work;
	bool found;

	atomic_fetch_add(&pool->sleepers, 1);
	work = atomic_load(&pool->work);
	if (!atomic_load(&pool->told_asleep))
		gather_tell_asleep(pool, true);
	/* Who stops the pool, or finds a batch, looks for sleepers after; a
	 * client that saw nobody asleep has posted before. */
	found = find(w, unit);
	if (!found) {
		pass(w);
		if (!stopped(pool) && atomic_load(&pool->leading))
			sleep_parked(w, &pool->work, work, 0);
	}
	atomic_fetch_sub(&pool->sleepers, 1);
	return found;
}

/* Look for work, ever less often; the only thread that does. */
static bool lead(struct gather_worker *w, struct gather_unit *unit)
{
	struct gather_pool *pool = w->pool;
	uint64_t idle = pool->options.idle_ms * UINT64_C(1000000);
	uint64_t nap = NAP_FIRST_NS;
	uint32_t bell;
	bool found;

	for (;;) {
		bell = atomic_load(&pool->bell);
		found = find(w, unit);
		if (found || stopped(pool))
			break;
		gather_pool_unmap_dead(pool);
		if (clock_ns() - atomic_load(&pool->last_ns) < idle) {
			nap = NAP_FIRST_NS;
			atomic_store(&pool->asleep, false);
			for (int i = 0; i < SPINS; i++)
				relax();
			continue;
		}
		if (!atomic_exchange(&pool->asleep, true) ||
		    !atomic_load(&pool->told_asleep)) {
			/* then look again: a client may have seen it awake */
			gather_tell_asleep(pool, true);
			continue;
		}
		pass(w);
		sleep_parked(w, &pool->bell, bell,
			     atomic_load(&pool->num_rings) ? nap : 0);
		nap = nap * 2 < NAP_LAST_NS ? nap * 2 : NAP_LAST_NS;
	}
	atomic_store(&pool->asleep, false);
	if (!atomic_load(&pool->sleepers))
		gather_tell_asleep(pool, false);
	return found;
}

/* Spin for a while, then lead or sleep. */
static bool idle(struct gather_worker *w, struct gather_unit *unit)
{
	struct gather_pool *pool = w->pool;
	uint64_t spin = pool->options.spin_us * UINT64_C(1000);
	bool found;

	while (clock_ns() - atomic_load(&pool->last_ns) < spin) {
		if (find(w, unit))
			return true;
		if (stopped(pool))
			return false;
		for (int i = 0; i < SPINS; i++)
			relax();
	}
	if (atomic_exchange(&pool->leading, true))
		return sleep_idle(w, unit);
	/* Nobody leads while it works, but it looks between its units. */
	found = lead(w, unit);
	atomic_store(&pool->leading, false);
	return found;
}

static void serve(struct gather_worker *w, const struct gather_unit *unit)
{
	struct gather_served served = gather_serve(unit);

	count(&w->rows, served.rows);
	if (served.finished)
		count(served.refused ? &w->refused : &w->batches, 1);
}

void *gather_worker_main(void *arg)
{
	struct gather_worker *w = arg;
	struct gather_unit unit;
	bool found = false;

	while (!stopped(w->pool)) {
		if (!found)
			found = find(w, &unit) || idle(w, &unit);
		if (!found)
			continue;
		serve(w, &unit);
		found = find(w, &unit);
	}
	return NULL;
}
