/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "random_hash.h"

#define MAX_REQUESTS 12

static int64_t *draw(struct rng *rng, int64_t count, int64_t low, int64_t high)
{
	int64_t *values = need((size_t)count * sizeof(*values));

	for (int64_t i = 0; i < count; i++)
		values[i] = rng_in(rng, low, high);
	return values;
}

/* Primes need not be primes to be divisors. */
static void make_layers(struct hash_case *c, struct rng *rng)
{
	static const int64_t tops[] = {3, 1000, 1 << 24, INT32_MAX};
	struct engram_hash_params *p = &c->params;

	for (uint32_t layer = 0; layer < p->num_layers; layer++) {
		int64_t top = RNG_PICK(rng, tops);
		/* any product: it wraps */
		int64_t most = rng_percent(rng, 80) ? 1LL << 45 : INT64_MAX;

		c->multipliers[layer] = draw(rng, p->max_ngram, 1, most);
		c->primes[layer] = draw(rng, c->cols, 1, top);
		c->offsets[layer] = draw(rng, c->cols, 0, INT32_MAX - top);
	}
	p->multipliers = (const int64_t *const *)c->multipliers;
	p->primes = (const int64_t *const *)c->primes;
	p->offsets = (const int64_t *const *)c->offsets;
}

static void make_params(struct hash_case *c, struct rng *rng)
{
	static const uint32_t heads[] = {1, 2, 3, 5, 8, 8, 11, 16, 40};
	struct engram_hash_params *p = &c->params;
	int64_t vocab = rng_in(rng, 2, 500);

	p->num_layers = (uint32_t)rng_in(rng, 1, 3);
	if (rng_percent(rng, 3))
		p->num_layers = HASH_MAX_LAYERS;
	p->max_ngram = (uint32_t)rng_in(rng, 2, 6);
	if (rng_percent(rng, 5))
		p->max_ngram = 16;
	p->min_ngram = rng_percent(rng, 70)
			       ? 2
			       : (uint32_t)rng_in(rng, 1, p->max_ngram);
	p->num_heads = RNG_PICK(rng, heads);
	c->cols = (int64_t)(p->max_ngram - p->min_ngram + 1) * p->num_heads;
	make_layers(c, rng);
	p->token_map_len = vocab;
	if (rng_percent(rng, 40))
		p->num_cuts = (uint32_t)rng_in(rng, 1, ENGRAM_CUTS_MAX);
	for (uint32_t i = 0; i < p->num_cuts; i++)
		p->cut_ids[i] = (int32_t)rng_in(rng, 0, vocab - 1);
	c->pad_raw = (int32_t)rng_in(rng, 0, vocab - 1);
	p->pad_id = c->pad_raw;
	if (rng_percent(rng, 20))
		return; /* identity */
	c->map = need((size_t)vocab * sizeof(*c->map));
	for (int64_t i = 0; i < vocab; i++)
		c->map[i] = (int32_t)rng_in(rng, 0, vocab - 1);
	p->token_map = c->map;
	p->pad_id = c->map[c->pad_raw];
}

static int32_t random_token(const struct hash_case *c, struct rng *rng,
			    int unknown)
{
	int64_t vocab = c->params.token_map_len;
	const int32_t outside[] = {-2, INT32_MIN, INT32_MAX, (int32_t)vocab};

	if (rng_percent(rng, unknown))
		return -1;
	if (rng_percent(rng, 4))
		return RNG_PICK(rng, outside);
	return (int32_t)rng_in(rng, 0, vocab - 1);
}

/* Bounds of requests, some empty, and at times padding behind the last. */
static void make_requests(struct hash_case *c, struct rng *rng)
{
	static const int64_t sizes[] = {0, 1, 1, 1, 2, 5, 40, 130};
	static const int64_t starts[] = {0, 0, 1, 2, 3, 20, 1000};
	struct engram_hash_batch *b = &c->batch;
	int64_t size[MAX_REQUESTS], at = 0;

	b->num_requests = rng_in(rng, 1, MAX_REQUESTS);
	view_make(&c->bounds, rng, sizeof(int32_t), b->num_requests + 1, 1, 1,
		  0);
	*(int32_t *)view_at(&c->bounds, 0, 0, 0) = 0;
	for (int64_t r = 0; r < b->num_requests; r++) {
		size[r] = RNG_PICK(rng, sizes);
		at += size[r];
		*(int32_t *)view_at(&c->bounds, r + 1, 0, 0) = (int32_t)at;
	}
	c->live = at;
	b->num_tokens = at + (rng_percent(rng, 30) ? rng_in(rng, 1, 9) : 0);
	view_make(&c->positions, rng, sizeof(int64_t), b->num_tokens, 1, 1, 0);
	at = 0;
	for (int64_t r = 0; r < b->num_requests; r++) {
		int64_t start = RNG_PICK(rng, starts);

		for (int64_t i = 0; i < size[r]; i++)
			*(int64_t *)view_at(&c->positions, at++, 0, 0) =
				start + i;
	}
	/* padding has any, of what a buffer holds */
	for (; at < b->num_tokens; at++)
		*(int64_t *)view_at(&c->positions, at, 0, 0) =
			rng_in(rng, 0, 5000);
}

static void make_tokens(struct hash_case *c, struct rng *rng)
{
	int64_t tokens = c->batch.num_tokens;

	view_make(&c->ids, rng, sizeof(int32_t), tokens, 1, 1, 0);
	view_make(&c->dead, rng, 1, tokens, 1, 1, 0);
	for (int64_t t = 0; t < tokens; t++) {
		*(int32_t *)view_at(&c->ids, t, 0, 0) = random_token(c, rng, 2);
		if (!rng_percent(rng, 15))
			*(uint8_t *)view_at(&c->dead, t, 0, 0) = 0;
	}
	c->batch.dead_mask = rng_percent(rng, 80) ? c->dead.first : NULL;
}

static void make_lookback(struct hash_case *c, struct rng *rng)
{
	struct engram_hash_batch *b = &c->batch;
	int64_t depth = c->params.max_ngram - 1;

	/* shorter or longer than n-grams reach, or none */
	if (rng_percent(rng, 40))
		depth = rng_in(rng, 0, depth + 2);
	view_make(&c->lookback, rng, sizeof(int32_t), b->num_requests, depth, 1,
		  0);
	view_make(&c->lookback_dead, rng, 1, b->num_requests, depth, 1, 0);
	for (int64_t r = 0; r < b->num_requests; r++)
		for (int64_t i = 0; i < depth; i++) {
			*(int32_t *)view_at(&c->lookback, r, i, 0) =
				random_token(c, rng, 30);
			if (!rng_percent(rng, 15))
				*(uint8_t *)view_at(&c->lookback_dead, r, i,
						    0) = 0;
		}
	b->lookback_depth = depth;
	b->lookback_ids = depth ? (const int32_t *)c->lookback.first : NULL;
	if (depth && rng_percent(rng, 80))
		b->lookback_dead = c->lookback_dead.first;
	b->lookback_row_stride = c->lookback.stride[0];
	b->lookback_col_stride = c->lookback.stride[1];
	b->lookback_dead_row_stride = c->lookback_dead.stride[0];
	b->lookback_dead_col_stride = c->lookback_dead.stride[1];
}

/* Each slot at most once: which of two tokens wins is nobody's promise. */
static void make_slots(struct hash_case *c, struct rng *rng)
{
	struct engram_hash_batch *b = &c->batch;
	int64_t slots = b->num_slots, used = 0;
	int64_t first = rng_in(rng, 0, slots - b->num_tokens);

	view_make(&c->slots, rng, sizeof(int64_t), b->num_tokens, 1, 1, 0);
	for (int64_t t = 0; t < b->num_tokens; t++) {
		int64_t slot = first + used++;

		if (rng_percent(rng, 20))
			slot = rng_percent(rng, 50) ? -1 : INT64_MIN;
		else if (rng_percent(rng, 4))
			slot = slots + rng_in(rng, 0, 1LL << 40);
		*(int64_t *)view_at(&c->slots, t, 0, 0) = slot;
	}
	b->slot_mapping = (const int64_t *)c->slots.first;
	b->slot_stride = c->slots.stride[0];
}

static void make_cache(struct hash_case *c, struct rng *rng)
{
	struct engram_hash_batch *b = &c->batch;

	if (rng_percent(rng, 40))
		return;
	b->num_slots = b->num_tokens + rng_in(rng, 1, 300);
	b->block_size = rng_in(rng, 1, 20);
	b->num_block_rows = b->num_requests;
	if (rng_percent(rng, 10))
		b->num_block_rows = rng_in(rng, 1, b->num_requests);
	b->max_blocks = rng_in(rng, 1, 12);
	c->cache = need((size_t)b->num_slots * sizeof(*c->cache));
	for (int64_t i = 0; i < b->num_slots; i++)
		c->cache[i] =
			(int32_t)rng_in(rng, -1, c->params.token_map_len - 1);
	b->slot_cache = c->cache;
	view_make(&c->table, rng, sizeof(int32_t), b->num_block_rows,
		  b->max_blocks, 1, 0);
	/* the others hold anything, which is clamped */
	for (int64_t r = 0; r < b->num_block_rows; r++)
		for (int64_t i = 0; i < b->max_blocks; i++)
			if (rng_percent(rng, 95))
				*(int32_t *)view_at(&c->table, r, i, 0) =
					(int32_t)rng_in(rng, 0,
							b->num_slots /
								b->block_size);
	b->block_table = (const int32_t *)c->table.first;
	b->block_row_stride = c->table.stride[0];
	b->block_col_stride = c->table.stride[1];
	make_slots(c, rng);
}

void hash_case_make(struct hash_case *c, struct rng *rng)
{
	struct engram_hash_batch *b = &c->batch;

	*c = (struct hash_case){0};
	make_params(c, rng);
	make_requests(c, rng);
	make_tokens(c, rng);
	make_lookback(c, rng);
	make_cache(c, rng);
	b->input_ids = (const int32_t *)c->ids.first;
	b->input_stride = c->ids.stride[0];
	b->dead_stride = c->dead.stride[0];
	b->positions = (const int64_t *)c->positions.first;
	b->position_stride = c->positions.stride[0];
	b->query_start_loc = (const int32_t *)c->bounds.first;
	b->query_stride = c->bounds.stride[0];
}

void hash_case_free(struct hash_case *c)
{
	struct view *views[] = {
		&c->ids,      &c->dead,		 &c->positions, &c->bounds,
		&c->lookback, &c->lookback_dead, &c->slots,	&c->table,
	};

	for (uint32_t layer = 0; layer < c->params.num_layers; layer++) {
		free(c->multipliers[layer]);
		free(c->primes[layer]);
		free(c->offsets[layer]);
	}
	for (size_t i = 0; i < sizeof(views) / sizeof(views[0]); i++)
		view_free(views[i]);
	free(c->map);
	free(c->cache);
}

void hash_case_say(const struct hash_case *c, char *why)
{
	const struct engram_hash_params *p = &c->params;
	const struct engram_hash_batch *b = &c->batch;
	size_t at = strlen(why);

	snprintf(why + at, WHY - at,
		 "\n  %u layers, n-grams %u to %u, %u heads, %lld ids, pad %d; "
		 "%lld tokens (%lld live) of %lld requests, look-back %lld, "
		 "%lld slots in blocks of %lld",
		 p->num_layers, p->min_ngram, p->max_ngram, p->num_heads,
		 (long long)p->token_map_len, p->pad_id,
		 (long long)b->num_tokens, (long long)c->live,
		 (long long)b->num_requests, (long long)b->lookback_depth,
		 (long long)b->num_slots, (long long)b->block_size);
}
