/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hash and lookup of all layers in one call, against slot writer, hash and
 * lookups one by one, which other tests compare with the CPU backend.  Half of
 * the cases are small enough for one launch.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engram_segment.h"
#include "random_hash.h"
#include "shim.h"

#define DIM	  256
#define RECORD	  264
#define MAX_TABLE 600

struct step_case {
	struct hash_case hash;
	struct engram_rows rows[HASH_MAX_LAYERS];
	uint8_t *records[HASH_MAX_LAYERS];
	uint32_t head_begin, local_heads;
	struct engram_cuda_grid grid;
	int32_t *before; /* the slot cache */
};

struct result {
	uint16_t *outs[HASH_MAX_LAYERS];
	int32_t *cache;
	struct engram_shim_counts counts;
};

/* Ids that a small table has, but for some; rows of a rank in its middle. */
static void make_layer(struct step_case *c, struct rng *rng, uint32_t layer,
		       uint32_t stride)
{
	int64_t rows = rng_in(rng, 1, MAX_TABLE);
	int64_t begin = rng_in(rng, 0, 100);

	for (int64_t col = 0; col < c->hash.cols; col++) {
		c->hash.primes[layer][col] = rng_in(rng, 1, rows + 20);
		c->hash.offsets[layer][col] = rng_in(rng, 0, begin + 20);
	}
	c->records[layer] = need((size_t)rows * stride);
	rng_fill(rng, c->records[layer], (size_t)rows * stride);
	c->rows[layer] = (struct engram_rows){
		.codes = c->records[layer],
		.scales = c->records[layer] + DIM,
		.code_stride_bytes = stride,
		.scale_stride_bytes = stride,
		.row_begin = begin,
		.row_end = begin + rows,
		.dtype = ENGRAM_F8_E4M3,
		.scale_scheme = ENGRAM_SCALE_UE8M0_BLOCK,
		.dim = DIM,
		.block_size = 32,
	};
}

static void make(struct step_case *c, struct rng *rng)
{
	/* one not a multiple of 8: always one by one */
	uint32_t stride = rng_percent(rng, 85) ? RECORD : RECORD + 3;
	int64_t cols, most;

	*c = (struct step_case){0};
	hash_case_make(&c->hash, rng);
	for (uint32_t i = 0; i < c->hash.params.num_layers; i++)
		make_layer(c, rng, i, stride);
	cols = c->hash.cols;
	most = cols + 2; /* with padded heads */
	if (rng_percent(rng, 60) && c->hash.batch.num_tokens)
		most = 1536 /
		       (c->hash.batch.num_tokens * c->hash.params.num_layers);
	c->local_heads = (uint32_t)rng_in(rng, 0, most < 12 ? most : 12);
	c->head_begin = (uint32_t)rng_in(rng, 0, cols - 1);
	c->grid.blocks = (uint32_t)rng_in(rng, 0, 3);
	engram_shim_options.registered = rng_percent(rng, 50);
	engram_shim_options.descriptor = rng_percent(rng, 50);
	engram_shim_options.grid = &c->grid;
	if (c->hash.cache) {
		size_t bytes =
			(size_t)c->hash.batch.num_slots * sizeof(int32_t);

		c->before = need(bytes);
		memcpy(c->before, c->hash.cache, bytes);
	}
}

static void free_case(struct step_case *c)
{
	memset(&engram_shim_options, 0, sizeof(engram_shim_options));
	for (uint32_t i = 0; i < c->hash.params.num_layers; i++)
		free(c->records[i]);
	free(c->before);
	hash_case_free(&c->hash);
}

static size_t out_bytes(const struct step_case *c)
{
	return (size_t)c->hash.batch.num_tokens * c->local_heads * DIM *
	       sizeof(uint16_t);
}

static void make_result(const struct step_case *c, struct result *r)
{
	*r = (struct result){.cache = c->hash.cache};
	for (uint32_t i = 0; i < c->hash.params.num_layers; i++)
		r->outs[i] = need(out_bytes(c));
}

static void free_result(const struct step_case *c, struct result *r)
{
	for (uint32_t i = 0; i < c->hash.params.num_layers; i++)
		free(r->outs[i]);
}

static enum engram_status one_by_one(struct step_case *c, struct result *r,
				     struct engram_error *err)
{
	const struct engram_hash_params *p = &c->hash.params;
	int64_t width = p->num_layers * c->hash.cols;
	int32_t *ids =
		need((size_t)(c->hash.batch.num_tokens * width) * sizeof(*ids));
	enum engram_status status =
		engram_shim_write_slots(p, &c->hash.batch, err);

	r->counts.rejects = status ? 0 : engram_shim_rejects();
	if (!c->hash.cache || !c->hash.batch.num_tokens)
		r->counts.rejects = 0;
	if (!status)
		status = engram_shim_hash(p, &c->hash.batch, ids, err);
	if (!status && c->hash.batch.num_tokens)
		r->counts.rejects += engram_shim_rejects();
	for (uint32_t i = 0; i < p->num_layers && !status; i++) {
		struct engram_lookup_args args = {
			.ids = ids + i * c->hash.cols,
			.ids_token_stride = width,
			.ids_head_stride = 1,
			.num_tokens = c->hash.batch.num_tokens,
			.head_begin = c->head_begin,
			.local_heads = c->local_heads,
			.total_heads = (uint32_t)c->hash.cols,
			.misses = &r->counts.misses,
		};

		status =
			engram_shim_lookup(&c->rows[i], &args, r->outs[i], err);
	}
	free(ids);
	return status;
}

/* What comes out for padding tokens means nothing, but it is the same. */
static int same(const struct step_case *c, const struct result *got,
		const struct result *want, const int32_t *cache, char *why)
{
	for (uint32_t i = 0; i < c->hash.params.num_layers; i++) {
		size_t bytes = out_bytes(c), at = 0;
		const uint16_t *a = got->outs[i], *b = want->outs[i];

		if (!memcmp(a, b, bytes))
			continue;
		while (a[at] == b[at])
			at++;
		snprintf(why, WHY,
			 "layer %u, row %zu, element %zu: 0x%04x, not "
			 "0x%04x",
			 i, at / DIM, at % DIM, a[at], b[at]);
		return 0;
	}
	if (c->hash.cache &&
	    memcmp(c->hash.cache, cache,
		   (size_t)c->hash.batch.num_slots * sizeof(*cache))) {
		snprintf(why, WHY, "other slots");
		return 0;
	}
	if (got->counts.misses == want->counts.misses &&
	    got->counts.rejects == want->counts.rejects)
		return 1;
	snprintf(why, WHY, "misses %llu, rejects %llu, not %llu and %llu",
		 (unsigned long long)got->counts.misses,
		 (unsigned long long)got->counts.rejects,
		 (unsigned long long)want->counts.misses,
		 (unsigned long long)want->counts.rejects);
	return 0;
}

static int compare(struct step_case *c, char *why)
{
	size_t cache_bytes = (size_t)c->hash.batch.num_slots * sizeof(int32_t);
	int32_t *cache = c->hash.cache ? need(cache_bytes) : NULL;
	struct result got, want;
	struct engram_error err;
	int ok = 0;

	make_result(c, &got);
	make_result(c, &want);
	if (one_by_one(c, &want, &err)) {
		snprintf(why, WHY, "one by one: %s", err.message);
		goto out;
	}
	if (cache) {
		memcpy(cache, c->hash.cache, cache_bytes);
		memcpy(c->hash.cache, c->before, cache_bytes);
	}
	if (engram_shim_hash_lookup(&c->hash.params, &c->hash.batch, c->rows,
				    c->head_begin, c->local_heads, got.outs,
				    &got.counts, &err))
		snprintf(why, WHY, "at once: %s", err.message);
	else
		ok = same(c, &got, &want, cache, why);
out:
	free_result(c, &got);
	free_result(c, &want);
	free(cache);
	return ok;
}

int random_step(uint64_t seed, char *why)
{
	struct rng rng = {seed};
	struct step_case c;
	int ok;

	make(&c, &rng);
	ok = compare(&c, why);
	if (!ok) {
		size_t at = strlen(why);

		snprintf(why + at, WHY - at, " (heads %u..+%u)", c.head_begin,
			 c.local_heads);
		hash_case_say(&c.hash, why);
	}
	free_case(&c);
	return ok ? 0 : -1;
}
