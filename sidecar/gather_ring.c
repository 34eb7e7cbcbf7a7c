/* SPDX-License-Identifier: Apache-2.0 */
#include "gather_ring.h"

#include "engram_stage.h"

/* So many units for each thread, if there are rows enough: one that is slow
 * does not hold up the batch. */
#define UNITS_A_THREAD 2

static uint32_t to_unit(uint32_t rows)
{
	return (rows + ENGRAM_RING_FLAG_UNIT - 1) / ENGRAM_RING_FLAG_UNIT *
	       ENGRAM_RING_FLAG_UNIT;
}

/* ---- a new batch ---- */

/* The rows that a post asks for; NULL if the ring is not bound to them. */
static const struct engram_rows *find_rows(const struct gather_ring *ring,
					   const struct engram_ring_post *post,
					   struct gather_binding **binding)
{
	for (uint32_t i = 0; i < GATHER_BINDINGS; i++) {
		struct gather_binding *b = atomic_load(&ring->bindings[i]);

		if (!b || b->generation != post->generation)
			continue;
		for (uint32_t l = 0; l < b->num_layers; l++)
			if (b->layers[l].layer_id == post->layer_id) {
				*binding = b;
				return &b->layers[l].rows;
			}
	}
	return NULL;
}

/* Units of equal size, whole numbers of them for each flag. */
static void cut(struct gather_batch *b, uint32_t unit_rows, uint32_t threads)
{
	const struct engram_ring_post *post = &b->post;
	uint32_t share = post->num_rows / (threads * UNITS_A_THREAD);
	uint32_t flags = engram_ring_flags(post);
	uint32_t last = post->num_rows - (flags - 1) * post->flag_rows;
	uint32_t parts;

	share = share < unit_rows ? share : unit_rows;
	share = share > GATHER_UNIT_MIN ? share : GATHER_UNIT_MIN;
	parts = (post->flag_rows + share - 1) / share;
	b->unit_rows = to_unit((post->flag_rows + parts - 1) / parts);
	b->flag_units = (post->flag_rows + b->unit_rows - 1) / b->unit_rows;
	for (uint32_t i = 0; i < flags - 1; i++)
		atomic_store_explicit(&b->flag_left[i], b->flag_units,
				      memory_order_relaxed);
	last = (last + b->unit_rows - 1) / b->unit_rows;
	atomic_store_explicit(&b->flag_left[flags - 1], last,
			      memory_order_relaxed);
	last += (flags - 1) * b->flag_units;
	atomic_store(&b->units_left, last);
	atomic_store(&b->units, last);
}

static void refuse(const struct gather_ring *ring, uint32_t slot,
		   const struct engram_ring_post *post)
{
	for (uint32_t i = 0; i < engram_ring_flags(post); i++)
		engram_ring_answer(&ring->ring, slot, i, post->seq,
				   ENGRAM_RING_REFUSED);
	engram_ring_finish(&ring->ring, slot, post->seq);
}

static enum gather_admitted admit(struct gather_ring *ring, uint32_t slot,
				  uint32_t unit_rows, uint32_t threads)
{
	struct gather_batch *b = &ring->batches[slot];
	int sound = engram_ring_read_post(&ring->ring, slot, &b->post);

	/* nobody claims while it changes */
	atomic_store(&b->claim, UINT32_MAX);
	b->rows = sound ? find_rows(ring, &b->post, &b->binding) : NULL;
	if (b->rows) {
		atomic_fetch_add(&b->binding->batches, 1);
		atomic_store(&b->refused, false);
		atomic_store(&b->small, b->post.num_rows <= GATHER_SMALL_ROWS);
		cut(b, unit_rows, threads);
		atomic_store(&b->claim, (uint64_t)b->post.seq << 32);
	} else {
		refuse(ring, slot, &b->post);
	}
	/* what was read, which may not be what stands there now */
	atomic_store(&b->seen, b->post.seq);
	return b->rows ? GATHER_ADMITTED : GATHER_REFUSED;
}

static bool is_new(struct gather_ring *ring, uint32_t slot)
{
	struct gather_batch *b = &ring->batches[slot];

	return engram_ring_posted(&ring->ring, slot) != atomic_load(&b->seen) &&
	       !atomic_load(&b->units_left);
}

enum gather_admitted gather_admit(struct gather_ring *ring, uint32_t slot,
				  uint32_t unit_rows, uint32_t threads,
				  uint32_t *units)
{
	enum gather_admitted result = GATHER_NOTHING;
	struct gather_batch *b = &ring->batches[slot];

	if (!is_new(ring, slot) || atomic_exchange(&b->admitting, true))
		return GATHER_NOTHING;
	/* Another may just have done it, and the client have posted the next:
	 * what was read before says nothing now. */
	if (is_new(ring, slot)) {
		result = admit(ring, slot, unit_rows, threads);
		*units = atomic_load(&b->units);
	}
	atomic_store(&b->admitting, false);
	return result;
}

/* ---- its units ---- */

bool gather_claim(struct gather_ring *ring, uint32_t slot,
		  struct gather_unit *out)
{
	struct gather_batch *b = &ring->batches[slot];
	uint64_t claim = atomic_load(&b->claim);
	uint32_t unit, flag_end;

	/* That the exchange succeeds says that `units` was of this batch. */
	do {
		unit = (uint32_t)claim;
		if (unit >= atomic_load(&b->units))
			return false;
	} while (!atomic_compare_exchange_weak(&b->claim, &claim, claim + 1));
	out->ring = ring;
	out->slot = slot;
	out->seq = b->post.seq;
	out->flag = unit / b->flag_units;
	out->begin = out->flag * b->post.flag_rows +
		     unit % b->flag_units * b->unit_rows;
	out->end = out->begin + b->unit_rows;
	flag_end = (out->flag + 1) * b->post.flag_rows;
	out->end = out->end < flag_end ? out->end : flag_end;
	out->end = out->end < b->post.num_rows ? out->end : b->post.num_rows;
	return true;
}

/* The ids are the client's memory: read once, and looked at in our own. */
static void copy_rows(const struct gather_unit *u,
		      const struct engram_rows *rows)
{
	enum { PART = 512 };
	const struct engram_ring *ring = &u->ring->ring;
	const int32_t *from = engram_ring_ids(ring, u->slot);
	int32_t ids[PART];

	for (uint32_t at = u->begin, n; at < u->end; at += n) {
		n = u->end - at < PART ? u->end - at : PART;
		for (uint32_t i = 0; i < n; i++)
			ids[i] = __atomic_load_n(&from[at + i],
						 __ATOMIC_RELAXED);
		engram_cpu_stage(rows, ids, n,
				 engram_ring_row(ring, u->slot, at),
				 ring->row_stride);
	}
}

uint32_t gather_serve(const struct gather_unit *u)
{
	struct gather_batch *b = &u->ring->batches[u->slot];
	const struct engram_ring *ring = &u->ring->ring;
	struct gather_binding *binding = b->binding;
	uint32_t rows = 0;

	if (atomic_load(&binding->closed)) {
		atomic_store(&b->refused, true);
	} else {
		copy_rows(u, b->rows);
		rows = u->end - u->begin;
	}
	if (atomic_fetch_sub(&b->flag_left[u->flag], 1) == 1)
		engram_ring_answer(ring, u->slot, u->flag, u->seq,
				   atomic_load(&b->refused)
					   ? ENGRAM_RING_REFUSED
					   : ENGRAM_RING_ROWS);
	/* With the last unit the batch is another's. */
	if (atomic_fetch_sub(&b->units_left, 1) == 1) {
		atomic_fetch_sub(&binding->batches, 1);
		engram_ring_finish(ring, u->slot, u->seq);
	}
	return rows;
}
