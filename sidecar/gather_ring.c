/* SPDX-License-Identifier: Apache-2.0 */
#include "gather_ring.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "engram_segment.h"
#include "engram_stage.h"

/* So many units of a large batch for each thread, if there are rows enough: one
 * that is slow does not hold up the batch. */
#define UNITS_A_THREAD 2
/* Ids come within microseconds of each other, unless a device stops in the
 * midst of a post. */
#define IDS_NS 20000
#define PART   512 /* rows whose ids are read at a time */

/*
 * Two batches of a slot are ordered by the client, which posts the second once
 * it has seen the flags of the first.  ThreadSanitizer does not see that: it
 * happens in another process, or in another mapping.
 */
#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#define AFTER_FLAGS(slot)  __tsan_acquire(slot)
#define BEFORE_FLAGS(slot) __tsan_release(slot)
#else
#define AFTER_FLAGS(slot)  ((void)(slot))
#define BEFORE_FLAGS(slot) ((void)(slot))
#endif

/* ---- a ring ---- */

struct gather_ring *gather_ring_new(uint32_t threads)
{
	size_t homes = (size_t)ENGRAM_RING_SLOTS * threads;
	size_t bytes =
		sizeof(struct gather_ring) + homes * sizeof(struct gather_home);
	struct gather_ring *ring = aligned_alloc(64, bytes);

	if (!ring)
		return NULL;
	memset(ring, 0, bytes);
	ring->threads = threads;
	return ring;
}

void gather_ring_free(struct gather_ring *ring)
{
	if (ring)
		engram_ring_unmap(&ring->ring);
	free(ring);
}

static struct gather_home *home(struct gather_ring *ring, uint32_t slot,
				uint32_t thread)
{
	return &ring->homes[slot * ring->threads + thread];
}

void gather_ring_begin(struct gather_ring *ring, uint64_t id)
{
	engram_ring_reset(&ring->ring);
	ring->id = id;
	for (uint32_t s = 0; s < ring->ring.shape.slots; s++) {
		uint32_t seq = engram_ring_posted(&ring->ring, s);

		ring->start[s] = seq;
		atomic_store(&ring->slots[s].next, (uint64_t)seq << 32);
		atomic_store(&ring->slots[s].done, (uint64_t)seq << 32);
		atomic_store(&ring->slots[s].counted, (uint64_t)seq << 32);
		for (uint32_t i = 0; i < ENGRAM_RING_FLAGS; i++)
			atomic_store(&ring->slots[s].flag_done[i],
				     (uint64_t)seq << 32);
		for (uint32_t i = 0; i < ring->threads; i++)
			atomic_store(&home(ring, s, i)->seq, seq);
	}
}

/* ---- a batch ---- */

static uint32_t divide_up(uint32_t a, uint32_t b)
{
	return a / b + (a % b != 0);
}

/* Whole chunks for each thread, as near as possible to its share. */
static void cut_small(struct gather_plan *plan, uint32_t threads)
{
	const struct engram_ring_post *post = &plan->post;
	uint32_t share = divide_up(post->num_rows, threads);
	uint32_t flags = divide_up(share, post->flag_rows);
	uint32_t most = GATHER_UNIT_SMALL / post->flag_rows;

	plan->flag_units = 0;
	plan->unit_flags = flags < most ? flags : most;
	plan->unit_rows = plan->unit_flags * post->flag_rows;
	plan->units = divide_up(post->num_rows, plan->unit_rows);
	plan->homes = plan->units < threads ? plan->units : threads;
}

/* Units of equal size, whole numbers of them for each chunk. */
static void cut_large(struct gather_plan *plan, uint32_t unit_rows,
		      uint32_t threads)
{
	const struct engram_ring_post *post = &plan->post;
	uint32_t share = post->num_rows / (threads * UNITS_A_THREAD);
	uint32_t flags = engram_ring_flags(post);
	uint32_t last = post->num_rows - (flags - 1) * post->flag_rows;

	share = share < unit_rows ? share : unit_rows;
	share = share > GATHER_UNIT_MIN ? share : GATHER_UNIT_MIN;
	share = divide_up(post->flag_rows, divide_up(post->flag_rows, share));
	plan->unit_rows =
		divide_up(share, ENGRAM_RING_FLAG_UNIT) * ENGRAM_RING_FLAG_UNIT;
	plan->unit_flags = 0;
	plan->flag_units = divide_up(post->flag_rows, plan->unit_rows);
	plan->units = (flags - 1) * plan->flag_units +
		      divide_up(last, plan->unit_rows);
	plan->homes = 0;
}

bool gather_look(const struct gather_ring *ring, uint32_t slot,
		 uint32_t unit_rows, struct gather_plan *plan)
{
	enum engram_ring_posting found =
		engram_ring_read_post(&ring->ring, slot, &plan->post);

	if (found == ENGRAM_RING_NOT_WHOLE)
		return false;
	plan->sound = found == ENGRAM_RING_SOUND;
	if (plan->post.flag_rows <= GATHER_UNIT_SMALL)
		cut_small(plan, ring->threads);
	else
		cut_large(plan, unit_rows, ring->threads);
	return true;
}

static void unit_range(const struct gather_plan *plan, uint32_t index,
		       uint32_t *begin, uint32_t *end)
{
	uint32_t flag_rows = plan->post.flag_rows, flag_end = UINT32_MAX;

	if (plan->unit_flags) {
		*begin = index * plan->unit_rows;
	} else {
		*begin = index / plan->flag_units * flag_rows +
			 index % plan->flag_units * plan->unit_rows;
		flag_end = (index / plan->flag_units + 1) * flag_rows;
	}
	*end = *begin + plan->unit_rows;
	*end = *end < flag_end ? *end : flag_end;
	*end = *end < plan->post.num_rows ? *end : plan->post.num_rows;
}

/* ---- taking units ---- */

/* Have the ids come, or those of a later batch?  The first and the last say so,
 * to be going on with. */
static bool has_ids(const struct gather_ring *ring, uint32_t slot,
		    const struct gather_plan *plan, uint32_t index)
{
	uint32_t begin, end, seq = plan->post.seq;

	if (!plan->sound)
		return true;
	unit_range(plan, index, &begin, &end);
	return !engram_ring_seq_before(
		       engram_ring_id_seq(&ring->ring, slot, begin), seq) &&
	       !engram_ring_seq_before(
		       engram_ring_id_seq(&ring->ring, slot, end - 1), seq);
}

static bool is_taken(struct gather_ring *ring, uint32_t slot, uint32_t index,
		     uint32_t seq)
{
	return !engram_ring_seq_before(
		atomic_load(&home(ring, slot, index)->seq), seq);
}

static bool take_home(struct gather_ring *ring, uint32_t slot, uint32_t index,
		      uint32_t seq)
{
	struct gather_home *h = home(ring, slot, index);
	uint32_t old = atomic_load(&h->seq);

	return engram_ring_seq_before(old, seq) &&
	       atomic_compare_exchange_strong(&h->seq, &old, seq);
}

static enum gather_claimed take_next(struct gather_ring *ring, uint32_t slot,
				     const struct gather_plan *plan,
				     uint32_t *index)
{
	struct gather_slot *s = &ring->slots[slot];
	uint64_t old = atomic_load(&s->next);
	uint32_t seq = plan->post.seq;

	do {
		if (old >> 32 == seq)
			*index = (uint32_t)old;
		else if (engram_ring_seq_before((uint32_t)(old >> 32), seq))
			*index = plan->homes;
		else
			return GATHER_NO_MORE;
		if (*index >= plan->units)
			return GATHER_NO_MORE;
		if (!has_ids(ring, slot, plan, *index))
			return GATHER_LATER;
	} while (!atomic_compare_exchange_weak(
		&s->next, &old, ENGRAM_RING_WORD(seq, *index + 1)));
	return GATHER_UNIT;
}

/* What others have not taken. */
static enum gather_claimed take_other(struct gather_ring *ring, uint32_t slot,
				      const struct gather_plan *plan, bool help,
				      uint32_t *index)
{
	enum gather_claimed result = GATHER_NO_MORE;

	for (uint32_t i = 0; i < plan->homes; i++) {
		if (is_taken(ring, slot, i, plan->post.seq))
			continue;
		*index = i;
		if (help && has_ids(ring, slot, plan, i) &&
		    take_home(ring, slot, i, plan->post.seq))
			return GATHER_UNIT;
		result = GATHER_LATER;
	}
	return result;
}

enum gather_claimed gather_claim(struct gather_ring *ring, uint32_t slot,
				 const struct gather_plan *plan,
				 uint32_t thread, bool help,
				 struct gather_unit *out)
{
	enum gather_claimed result;

	*out = (struct gather_unit){
		.ring = ring, .plan = plan, .slot = slot, .index = thread};
	if (thread < plan->homes &&
	    !is_taken(ring, slot, thread, plan->post.seq)) {
		if (!has_ids(ring, slot, plan, thread))
			return GATHER_LATER;
		if (take_home(ring, slot, thread, plan->post.seq))
			return GATHER_UNIT;
	}
	result = take_next(ring, slot, plan, &out->index);
	if (result == GATHER_NO_MORE)
		result = take_other(ring, slot, plan, help, &out->index);
	return result;
}

/* ---- copying ---- */

/* Of the copies of a table, the one nearest to the core that we run on. */
static uint32_t copy_here(const struct gather_binding *b)
{
	unsigned int core, node;

	if (!b->nearest || getcpu(&core, &node) || node >= ENGRAM_NODES)
		return 0;
	return b->nearest[node];
}

/* The rows that a post asks for; NULL if the ring is not bound to them.  Until
 * the end of the thread's pass they stay. */
static const struct engram_rows *find_rows(const struct gather_ring *ring,
					   const struct engram_ring_post *post)
{
	uint32_t first;

	for (uint32_t i = 0; i < GATHER_BINDINGS; i++) {
		struct gather_binding *b = atomic_load(&ring->bindings[i]);

		if (!b || (uint32_t)b->generation != post->generation)
			continue;
		first = copy_here(b) * b->num_layers;
		for (uint32_t l = first; l < first + b->num_layers; l++)
			if (b->layers[l].layer_id == post->layer_id)
				return &b->layers[l].rows;
	}
	return NULL;
}

/* The ids are the client's memory: read once, and looked at in our own. */
static bool read_ids(const struct gather_unit *u, uint32_t begin, uint32_t end,
		     int32_t *ids)
{
	const uint64_t *from = engram_ring_ids(&u->ring->ring, u->slot) + begin;
	uint32_t seq = u->plan->post.seq;
	uint64_t deadline = 0, word, now;

	for (uint32_t i = 0; i < end - begin; i++) {
		while (word = __atomic_load_n(&from[i], __ATOMIC_RELAXED),
		       word >> 32 != seq) {
			if (!engram_ring_seq_before((uint32_t)(word >> 32),
						    seq))
				return false;
			now = clock_ns();
			deadline = deadline ? deadline : now + IDS_NS;
			if (now > deadline)
				return false;
		}
		ids[i] = (int32_t)(uint32_t)word;
	}
	return true;
}

static enum engram_ring_result result_of(bool good)
{
	return good ? ENGRAM_RING_ROWS : ENGRAM_RING_REFUSED;
}

/* Add a unit to a count of those of this batch.  What it is then; 0 if it
 * counts for a later one, which means that nobody waits for ours. */
static uint64_t count_unit(_Atomic uint64_t *count, uint32_t seq, bool good)
{
	uint64_t old = atomic_load(count), now;

	do {
		if (old >> 32 == seq)
			now = old + 1;
		else if (engram_ring_seq_before((uint32_t)(old >> 32), seq))
			now = ENGRAM_RING_WORD(seq, 1);
		else
			return 0;
		now |= good ? 0 : GATHER_BAD;
	} while (!atomic_compare_exchange_weak(count, &old, now));
	return now;
}

static void add(_Atomic uint64_t *counter, uint64_t n)
{
	atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

static void count_batch(struct gather_slot *slot, bool refused, uint32_t rows)
{
	add(refused ? &slot->refused : &slot->batches, 1);
	if (!refused)
		add(&slot->rows, rows);
}

/* Before the last flags of a unit: once all are raised the client may post the
 * next batch, whose units would count in place of ours. */
static void count_served(const struct gather_unit *u, bool good,
			 struct gather_served *served)
{
	struct gather_slot *slot = &u->ring->slots[u->slot];
	uint64_t done = count_unit(&slot->counted, u->plan->post.seq, good);

	if ((uint32_t)(done & ~GATHER_BAD) != u->plan->units)
		return;
	served->finished = true;
	served->refused = done & GATHER_BAD;
	count_batch(slot, served->refused, u->plan->post.num_rows);
}

/* Of a unit of whole chunks: each is told of as soon as it is there. */
static bool serve_small(const struct gather_unit *u,
			const struct engram_rows *rows, uint32_t begin,
			uint32_t end, struct gather_served *served)
{
	const struct engram_ring *ring = &u->ring->ring;
	uint32_t flag_rows = u->plan->post.flag_rows, n;
	int32_t ids[GATHER_UNIT_SMALL];
	bool good = rows && read_ids(u, begin, end, ids);
	struct engram_stage stage;

	if (good)
		engram_cpu_stage_begin(&stage, rows, ids, end - begin);
	for (uint32_t at = begin; at < end; at += n) {
		n = end - at < flag_rows ? end - at : flag_rows;
		if (good)
			engram_cpu_stage_next(
				&stage, n, engram_ring_row(ring, u->slot, at),
				ring->row_stride, ENGRAM_STAGE_CACHED);
		if (at + n == end)
			count_served(u, good, served);
		BEFORE_FLAGS(engram_ring_slot(ring, u->slot));
		engram_ring_answer(ring, u->slot, at / flag_rows,
				   u->plan->post.seq, result_of(good));
	}
	return good;
}

/* Of a unit that is a part of a chunk: who does the last one tells of it. */
static bool serve_large(const struct gather_unit *u,
			const struct engram_rows *rows, uint32_t begin,
			uint32_t end, struct gather_served *served)
{
	const struct engram_ring *ring = &u->ring->ring;
	const struct gather_plan *plan = u->plan;
	uint32_t flag = u->index / plan->flag_units, n;
	uint32_t units = plan->units - flag * plan->flag_units;
	bool good = rows != NULL;
	int32_t ids[PART];
	uint64_t done;

	for (uint32_t at = begin; at < end && good; at += n) {
		n = end - at < PART ? end - at : PART;
		good = read_ids(u, at, at + n, ids);
		if (good)
			engram_cpu_stage(rows, ids, n,
					 engram_ring_row(ring, u->slot, at),
					 ring->row_stride);
	}
	units = units < plan->flag_units ? units : plan->flag_units;
	count_served(u, good, served);
	BEFORE_FLAGS(engram_ring_slot(ring, u->slot));
	done = count_unit(&u->ring->slots[u->slot].flag_done[flag],
			  plan->post.seq, good);
	if ((uint32_t)(done & ~GATHER_BAD) == units)
		engram_ring_answer(ring, u->slot, flag, plan->post.seq,
				   result_of(!(done & GATHER_BAD)));
	return good;
}

struct gather_use gather_ring_use(const struct gather_ring *ring)
{
	struct gather_use use = {0};

	for (uint32_t i = 0; i < ENGRAM_RING_SLOTS; i++) {
		const struct gather_slot *slot = &ring->slots[i];

		use.batches += atomic_load(&slot->batches);
		use.refused += atomic_load(&slot->refused);
		use.rows += atomic_load(&slot->rows);
	}
	return use;
}

struct gather_served gather_serve(const struct gather_unit *u)
{
	const struct gather_plan *plan = u->plan;
	const struct engram_rows *rows =
		plan->sound ? find_rows(u->ring, &plan->post) : NULL;
	struct gather_served served = {0};
	uint32_t begin, end;
	uint64_t done;
	bool good;

	AFTER_FLAGS(engram_ring_slot(&u->ring->ring, u->slot));
	unit_range(plan, u->index, &begin, &end);
	good = plan->unit_flags ? serve_small(u, rows, begin, end, &served)
				: serve_large(u, rows, begin, end, &served);
	served.rows = good ? end - begin : 0;
	done = count_unit(&u->ring->slots[u->slot].done, plan->post.seq, good);
	if ((uint32_t)(done & ~GATHER_BAD) == plan->units)
		engram_ring_finish(&u->ring->ring, u->slot, plan->post.seq);
	return served;
}
