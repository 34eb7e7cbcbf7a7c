/* SPDX-License-Identifier: Apache-2.0 */
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "engram_ring.h"

#define SPIN_NS	 30000 /* a small batch has come by then */
#define SLEEP_NS 5000000
#define SPINS	 32 /* between two looks at the clock */

/* The memory is the other side's as well: every access is one of its own,
 * whole, and no compiler repeats it. */
static uint32_t load(const uint32_t *from)
{
	return __atomic_load_n(from, __ATOMIC_RELAXED);
}

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void relax(void)
{
#ifdef __x86_64__
	__builtin_ia32_pause();
#endif
}

/* ---- the client's side ---- */

int engram_ring_idle(const struct engram_ring *ring, uint32_t slot,
		     uint32_t seq)
{
	const struct engram_ring_slot *s = engram_ring_slot(ring, slot);

	return __atomic_load_n(&s->answer.finished, __ATOMIC_ACQUIRE) == seq;
}

uint32_t engram_ring_flag_rows(uint32_t num_rows, uint32_t flags)
{
	uint32_t rows = (num_rows + flags - 1) / flags;

	rows = (rows + ENGRAM_RING_FLAG_UNIT - 1) / ENGRAM_RING_FLAG_UNIT *
	       ENGRAM_RING_FLAG_UNIT;
	return rows ? rows : ENGRAM_RING_FLAG_UNIT;
}

void engram_ring_post(const struct engram_ring *ring, uint32_t slot,
		      const struct engram_ring_post *post)
{
	struct engram_ring_words *to = &engram_ring_slot(ring, slot)->post;
	const uint32_t values[ENGRAM_RING_POST_WORDS] = {
		[ENGRAM_RING_NUM_ROWS] = post->num_rows,
		[ENGRAM_RING_FLAG_ROWS] = post->flag_rows,
		[ENGRAM_RING_LAYER_ID] = (uint32_t)post->layer_id,
		[ENGRAM_RING_GENERATION] = post->generation,
	};

	/* Once in 2^30 posts: no flag may be that old. */
	if (post->seq == 1)
		for (uint32_t i = 0; i < ENGRAM_RING_FLAGS; i++)
			__atomic_store_n(
				&engram_ring_slot(ring, slot)->flags[i].value,
				0, __ATOMIC_RELAXED);
	for (int i = 0; i < ENGRAM_RING_POST_WORDS; i++)
		__atomic_store_n(&to->words[i],
				 ENGRAM_RING_WORD(post->seq, values[i]),
				 __ATOMIC_RELEASE);
}

static enum engram_ring_result result_of(uint32_t value, uint32_t seq)
{
	return value >> 2 == seq ? (enum engram_ring_result)(value & 3)
				 : ENGRAM_RING_PENDING;
}

enum engram_ring_result engram_ring_look(const struct engram_ring *ring,
					 uint32_t slot, uint32_t flag,
					 uint32_t seq)
{
	const struct engram_ring_slot *s = engram_ring_slot(ring, slot);

	return result_of(
		__atomic_load_n(&s->flags[flag].value, __ATOMIC_ACQUIRE), seq);
}

/* Until the flag changes from `value`, or for a moment: whoever changes it
 * may not have seen that somebody waits. */
static void sleep_on(uint32_t *flag, uint32_t value, uint64_t ns)
{
	struct timespec timeout = {
		.tv_nsec = (long)(ns < SLEEP_NS ? ns : SLEEP_NS)};

	syscall(SYS_futex, flag, FUTEX_WAIT, value, &timeout, NULL, 0);
}

/* The flag's new value: the client's own, unless the other side was first. */
static uint32_t put(uint32_t *flag, uint32_t seq, uint32_t value)
{
	uint32_t old = load(flag);

	while (result_of(old, seq) == ENGRAM_RING_PENDING)
		if (__atomic_compare_exchange_n(flag, &old, value, 0,
						__ATOMIC_ACQ_REL,
						__ATOMIC_ACQUIRE))
			return value;
	return old;
}

static enum engram_ring_result await_asleep(struct engram_ring_header *header,
					    uint32_t *flag, uint32_t seq,
					    uint64_t deadline_ns)
{
	uint32_t value;
	uint64_t now;

	__atomic_fetch_add(&header->waiting, 1, __ATOMIC_SEQ_CST);
	while (value = __atomic_load_n(flag, __ATOMIC_SEQ_CST),
	       result_of(value, seq) == ENGRAM_RING_PENDING) {
		now = now_ns();
		if (now >= deadline_ns) {
			value = put(
				flag, seq,
				engram_ring_flag_of(seq, ENGRAM_RING_GIVEN_UP));
			break;
		}
		sleep_on(flag, value, deadline_ns - now);
	}
	__atomic_fetch_sub(&header->waiting, 1, __ATOMIC_RELAXED);
	return result_of(value, seq);
}

enum engram_ring_result engram_ring_await(const struct engram_ring *ring,
					  uint32_t slot, uint32_t flag,
					  uint32_t seq, uint64_t deadline_ns)
{
	uint32_t *at = &engram_ring_slot(ring, slot)->flags[flag].value;
	enum engram_ring_result result;
	uint64_t until = 0, now;

	for (uint32_t i = 0;; i++) {
		result = engram_ring_look(ring, slot, flag, seq);
		if (result != ENGRAM_RING_PENDING)
			return result;
		relax();
		if (i % SPINS)
			continue;
		now = now_ns();
		until = until ? until : now + SPIN_NS;
		if (now >= until || now >= deadline_ns)
			break;
	}
	return await_asleep(engram_ring_header(ring), at, seq, deadline_ns);
}

/* ---- engramd's side ---- */

static uint64_t load_word(const struct engram_ring *ring, uint32_t slot,
			  enum engram_ring_post_word word)
{
	/* acquire: a client without a device has stored the ids before */
	return __atomic_load_n(&engram_ring_slot(ring, slot)->post.words[word],
			       __ATOMIC_ACQUIRE);
}

uint32_t engram_ring_posted(const struct engram_ring *ring, uint32_t slot)
{
	return (uint32_t)(load_word(ring, slot, ENGRAM_RING_NUM_ROWS) >> 32);
}

enum engram_ring_posting engram_ring_read_post(const struct engram_ring *ring,
					       uint32_t slot,
					       struct engram_ring_post *out)
{
	uint32_t values[ENGRAM_RING_POST_WORDS];

	for (int i = 0; i < ENGRAM_RING_POST_WORDS; i++) {
		uint64_t word =
			load_word(ring, slot, (enum engram_ring_post_word)i);

		if (i == 0)
			out->seq = (uint32_t)(word >> 32);
		else if (word >> 32 != out->seq)
			return ENGRAM_RING_NOT_WHOLE;
		values[i] = (uint32_t)word;
	}
	out->num_rows = values[ENGRAM_RING_NUM_ROWS];
	out->flag_rows = values[ENGRAM_RING_FLAG_ROWS];
	out->layer_id = (int32_t)values[ENGRAM_RING_LAYER_ID];
	out->generation = values[ENGRAM_RING_GENERATION];
	if (out->seq && out->seq <= ENGRAM_RING_SEQ_MAX && out->num_rows &&
	    out->num_rows <= ring->shape.max_rows && out->flag_rows &&
	    out->flag_rows % ENGRAM_RING_FLAG_UNIT == 0 &&
	    engram_ring_flags(out) <= ENGRAM_RING_FLAGS)
		return ENGRAM_RING_SOUND;
	/* Whoever waits for any flag is told. */
	out->num_rows = ENGRAM_RING_FLAGS * ENGRAM_RING_FLAG_UNIT;
	out->flag_rows = ENGRAM_RING_FLAG_UNIT;
	return ENGRAM_RING_UNSOUND;
}

void engram_ring_answer(const struct engram_ring *ring, uint32_t slot,
			uint32_t flag, uint32_t seq,
			enum engram_ring_result result)
{
	uint32_t *at = &engram_ring_slot(ring, slot)->flags[flag].value;

	put(at, seq, engram_ring_flag_of(seq, result));
	/* Ordered after the flag by the exchange above, as the client's look
	 * at the flag is after its `waiting`. */
	if (__atomic_load_n(&engram_ring_header(ring)->waiting,
			    __ATOMIC_SEQ_CST))
		syscall(SYS_futex, at, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

void engram_ring_finish(const struct engram_ring *ring, uint32_t slot,
			uint32_t seq)
{
	uint32_t *at = &engram_ring_slot(ring, slot)->answer.finished;
	uint32_t old = load(at);

	/* 0 is from before every number */
	while ((!old || engram_ring_seq_before(old, seq)) &&
	       !__atomic_compare_exchange_n(at, &old, seq, 0, __ATOMIC_RELEASE,
					    __ATOMIC_RELAXED))
		;
}

void engram_ring_reset(const struct engram_ring *ring)
{
	for (uint32_t i = 0; i < ring->shape.slots; i++)
		__atomic_store_n(&engram_ring_slot(ring, i)->answer.finished,
				 engram_ring_posted(ring, i), __ATOMIC_RELEASE);
}

void engram_ring_set_asleep(const struct engram_ring *ring, uint32_t asleep)
{
	__atomic_store_n(&engram_ring_header(ring)->asleep, asleep,
			 __ATOMIC_SEQ_CST);
}
