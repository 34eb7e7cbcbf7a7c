/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The hash and the slot writer: the numbers of the CPU backend.  That one
 * refuses ids out of range, so it gets a batch in which they are the pad id,
 * which is what the CUDA backend takes them for.
 */
#include "random_hash.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shim.h"

static int out_of_range(const struct hash_case *c, int64_t id)
{
	return id < 0 || id >= c->params.token_map_len;
}

static int is_dead(const struct hash_case *c, int64_t token)
{
	return c->batch.dead_mask && *(uint8_t *)view_at(&c->dead, token, 0, 0);
}

/* Live tokens of the batch that stand for no text of the table. */
static uint64_t count_bad_ids(const struct hash_case *c)
{
	uint64_t count = 0;

	for (int64_t t = 0; t < c->live; t++)
		count += !is_dead(c, t) &&
			 out_of_range(c, *(int32_t *)view_at(&c->ids, t, 0, 0));
	return count;
}

static uint64_t count_bad_slots(const struct hash_case *c)
{
	uint64_t count = 0;

	for (int64_t t = 0; c->cache && t < c->batch.num_tokens; t++)
		count += *(int64_t *)view_at(&c->slots, t, 0, 0) >=
			 c->batch.num_slots;
	return count;
}

/* What the CPU accepts, with the same meaning. */
struct accepted {
	struct engram_hash_batch batch;
	struct view ids, lookback, slots;
	int32_t *cache;
};

static void accept_tokens(const struct hash_case *c, struct accepted *a)
{
	view_clone(&a->ids, &c->ids);
	for (int64_t t = 0; t < c->batch.num_tokens; t++) {
		int32_t *id = view_at(&a->ids, t, 0, 0);

		if (out_of_range(c, *id))
			*id = c->pad_raw;
	}
	a->batch.input_ids = (const int32_t *)a->ids.first;
	view_clone(&a->lookback, &c->lookback);
	for (int64_t r = 0; r < c->batch.num_requests; r++)
		for (int64_t i = 0; i < c->batch.lookback_depth; i++) {
			int32_t *id = view_at(&a->lookback, r, i, 0);

			/* all below 0 say that nothing is known */
			if (*id >= 0 && out_of_range(c, *id))
				*id = c->pad_raw;
		}
	if (c->batch.lookback_ids)
		a->batch.lookback_ids = (const int32_t *)a->lookback.first;
}

static void accept(const struct hash_case *c, struct accepted *a)
{
	size_t bytes = (size_t)c->batch.num_slots * sizeof(*a->cache);

	*a = (struct accepted){.batch = c->batch};
	accept_tokens(c, a);
	if (!c->cache)
		return;
	a->cache = need(bytes);
	memcpy(a->cache, c->cache, bytes);
	a->batch.slot_cache = a->cache;
	view_clone(&a->slots, &c->slots);
	for (int64_t t = 0; t < c->batch.num_tokens; t++) {
		int64_t *slot = view_at(&a->slots, t, 0, 0);

		if (*slot >= c->batch.num_slots)
			*slot = -1;
	}
	a->batch.slot_mapping = (const int64_t *)a->slots.first;
}

static void accepted_free(struct accepted *a)
{
	view_free(&a->ids);
	view_free(&a->lookback);
	view_free(&a->slots);
	free(a->cache);
}

static int same(const int32_t *got, const int32_t *want, int64_t count,
		int64_t width, const char *what, char *why)
{
	for (int64_t i = 0; i < count; i++) {
		if (got[i] == want[i])
			continue;
		snprintf(why, WHY, "%s %lld, column %lld is %d, not %d", what,
			 (long long)(i / width), (long long)(i % width), got[i],
			 want[i]);
		return 0;
	}
	return 1;
}

static int same_rejects(uint64_t want, const char *what, char *why)
{
	uint64_t got = engram_shim_rejects();

	if (engram_shim_options.no_rejects)
		want = 0;
	if (got != want)
		snprintf(why, WHY, "the %s counted %llu rejects, not %llu",
			 what, (unsigned long long)got,
			 (unsigned long long)want);
	return got == want;
}

static int check_slots(struct hash_case *c, struct accepted *a, char *why)
{
	struct engram_error err;

	if (engram_cpu_write_slots(&c->params, &a->batch, &err)) {
		snprintf(why, WHY, "CPU, slots: %s", err.message);
		return 0;
	}
	if (engram_shim_write_slots(&c->params, &c->batch, &err)) {
		snprintf(why, WHY, "CUDA, slots: %s", err.message);
		return 0;
	}
	return (!c->cache ||
		same(c->cache, a->cache, c->batch.num_slots, 1, "slot", why)) &&
	       same_rejects(count_bad_slots(c), "slot writer", why);
}

static int check_hash(struct hash_case *c, struct accepted *a, char *why)
{
	int64_t width = c->params.num_layers * c->cols;
	size_t bytes = (size_t)(c->batch.num_tokens * width) * sizeof(int32_t);
	int32_t *out = memset(need(bytes), 1, bytes);
	int32_t *want = memset(need(bytes), 2, bytes);
	struct engram_error err;
	int ok = 0;

	if (engram_cpu_hash(&c->params, &a->batch, want, &err))
		snprintf(why, WHY, "CPU: %s", err.message);
	else if (engram_shim_hash(&c->params, &c->batch, out, &err))
		snprintf(why, WHY, "CUDA: %s", err.message);
	else
		/* what comes out for padding means nothing */
		ok = same(out, want, c->live * width, width, "token", why) &&
		     same_rejects(count_bad_ids(c), "hash", why);
	free(out);
	free(want);
	return ok;
}

int random_hash(uint64_t seed, char *why)
{
	struct rng rng = {seed};
	struct hash_case c;
	struct accepted a;
	int ok;

	hash_case_make(&c, &rng);
	accept(&c, &a);
	engram_shim_options.no_rejects = rng_percent(&rng, 15);
	ok = check_slots(&c, &a, why) && check_hash(&c, &a, why);
	if (!ok)
		hash_case_say(&c, why);
	engram_shim_options.no_rejects = 0;
	accepted_free(&a);
	hash_case_free(&c);
	return ok ? 0 : -1;
}
