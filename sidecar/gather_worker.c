/* SPDX-License-Identifier: Apache-2.0 */
#include "clock.h"
#include "futex.h"
#include "gather_pool.h"

/* Every so many units a thread takes any batch, not a small one first: many
 * small ones can not starve a large one. */
#define ANY_TURN     4
#define SPINS	     8
#define NAP_FIRST_NS 50000
#define NAP_LAST_NS  1000000

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

/* Others to help with the units of a new batch. */
static void call_others(struct gather_pool *pool, uint32_t units)
{
	uint32_t asleep = atomic_load(&pool->sleepers);
	uint32_t wanted = units > 1 ? units - 1 : 0;

	if (!asleep || !wanted)
		return;
	atomic_fetch_add(&pool->work, 1);
	futex_wake(&pool->work, (int)(asleep < wanted ? asleep : wanted));
}

static void look(struct gather_worker *w, struct gather_ring *ring,
		 uint32_t slot)
{
	struct gather_pool *pool = w->pool;
	uint32_t units;

	switch (gather_admit(ring, slot, pool->options.unit_rows,
			     pool->num_workers, &units)) {
	case GATHER_NOTHING:
		return;
	case GATHER_REFUSED:
		count(&w->refused, 1);
		break;
	case GATHER_ADMITTED:
		count(&w->batches, 1);
		call_others(pool, units);
		break;
	}
	atomic_store_explicit(&pool->last_ns, clock_ns(), memory_order_relaxed);
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
			struct gather_batch *b = &ring->batches[s];

			look(w, ring, s);
			if ((uint32_t)atomic_load(&b->claim) >=
			    atomic_load(&b->units))
				continue;
			if (any || atomic_load(&b->small)) {
				w->next_ring = place + 1;
				if (gather_claim(ring, s, unit))
					return true;
			} else if (!large) {
				large = ring;
				large_slot = s;
				at = place;
			}
		}
	}
	if (!large)
		return false;
	w->next_ring = at + 1;
	return gather_claim(large, large_slot, unit);
}

/* ---- idling ---- */

static void set_asleep(struct gather_pool *pool, bool asleep)
{
	uint32_t n = atomic_load(&pool->num_rings);

	atomic_store(&pool->asleep, asleep);
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

/* Until there is work that others have found. */
static bool sleep_idle(struct gather_worker *w, struct gather_unit *unit)
{
	struct gather_pool *pool = w->pool;
	uint32_t work;
	bool found;

	atomic_fetch_add(&pool->sleepers, 1);
	work = atomic_load(&pool->work);
	/* Who stops the pool, or finds a batch, looks for sleepers after. */
	found = find(w, unit);
	pass(w);
	if (!found && !stopped(pool) && atomic_load(&pool->leading))
		sleep_parked(w, &pool->work, work, 0);
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
			if (atomic_load(&pool->asleep))
				set_asleep(pool, false);
			for (int i = 0; i < SPINS; i++)
				relax();
			continue;
		}
		if (!atomic_load(&pool->asleep)) {
			/* then look again: a client may have seen it awake */
			set_asleep(pool, true);
			continue;
		}
		pass(w);
		sleep_parked(w, &pool->bell, bell,
			     atomic_load(&pool->num_rings) ? nap : 0);
		nap = nap * 2 < NAP_LAST_NS ? nap * 2 : NAP_LAST_NS;
	}
	if (atomic_load(&pool->asleep))
		set_asleep(pool, false);
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
		count(&w->rows, gather_serve(&unit));
		found = find(w, &unit);
	}
	return NULL;
}
