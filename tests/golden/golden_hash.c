/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engram_geometry.h"
#include "engram_kernels.h"
#include "golden.h"

#define MAX_LAYERS 8

struct hash_case {
	struct engram_geometry *geometry;
	struct engram_hash_params params;
	struct engram_hash_batch batch;
	const int64_t *primes[MAX_LAYERS], *offsets[MAX_LAYERS];
	const int64_t *multipliers[MAX_LAYERS];
};

static void read_params(const struct golden_case *c, struct hash_case *h)
{
	int64_t ids[MAX_LAYERS], shape[1];
	int32_t layer_ids[MAX_LAYERS];
	size_t layers = golden_list(c, "engram_layer_ids", ids, MAX_LAYERS);
	struct engram_geometry_config config = {
		.num_layers = (uint32_t)layers,
		.layer_ids = layer_ids,
		.max_ngram = (uint32_t)golden_int(c, "engram_max_ngram_size"),
		.num_heads = (uint32_t)golden_int(c, "engram_n_heads"),
		.vocab_size = (uint32_t)golden_int(c, "engram_vocab_size"),
		.compressed_vocab_size =
			(uint32_t)golden_int(c, "engram_compressed_vocab_size"),
	};
	struct engram_geometry *g;
	struct engram_error err;

	for (size_t i = 0; i < layers; i++)
		layer_ids[i] = (int32_t)ids[i];
	if (engram_geometry_derive(&config, &h->geometry, &err))
		golden_die(c->path, "geometry:", err.message);
	g = h->geometry;
	for (size_t i = 0; i < layers; i++) {
		h->primes[i] = g->primes + i * g->num_cols;
		h->offsets[i] = g->offsets + i * g->num_cols;
		h->multipliers[i] = g->multipliers + i * g->max_ngram;
	}
	h->params = (struct engram_hash_params){
		.num_layers = g->num_layers,
		.min_ngram = 2,
		.max_ngram = g->max_ngram,
		.num_heads = g->num_heads,
		.multipliers = h->multipliers,
		.primes = h->primes,
		.offsets = h->offsets,
		.token_map = golden_need(c, "token_map", "I32", 1, shape),
		.pad_id = (int32_t)golden_int(c, "pad_id"),
	};
	h->params.token_map_len = shape[0];
}

static void read_batch(const struct golden_case *c, struct hash_case *h)
{
	struct engram_hash_batch *b = &h->batch;
	int64_t shape[2];

	b->input_ids = golden_need(c, "input_ids", "I32", 1, shape);
	b->num_tokens = shape[0];
	b->dead_mask = golden_need(c, "dead_mask", "BOOL", 1, shape);
	b->positions = golden_need(c, "positions", "I64", 1, shape);
	b->query_start_loc = golden_need(c, "query_start_loc", "I32", 1, shape);
	b->num_requests = shape[0] - 1;
	b->input_stride = b->dead_stride = b->position_stride = 1;
	b->query_stride = 1;
	b->lookback_ids = golden_need(c, "lookback_token_ids", "I32", 2, shape);
	b->lookback_depth = b->lookback_row_stride = shape[1];
	b->lookback_dead =
		golden_need(c, "lookback_dead_mask", "BOOL", 2, shape);
	b->lookback_dead_row_stride = shape[1];
	b->lookback_col_stride = b->lookback_dead_col_stride = 1;
}

/* The case's slots, in a copy that the test may write. */
static void read_cache(const struct golden_case *c, struct hash_case *h)
{
	struct engram_hash_batch *b = &h->batch;
	const int32_t *before;
	int64_t shape[2];

	if (strcmp(golden_text(c, "use_slot_cache"), "true"))
		return;
	before = golden_need(c, "cache_before", "I32", 1, shape);
	b->num_slots = shape[0];
	b->slot_cache = malloc((size_t)b->num_slots * sizeof(*before));
	if (!b->slot_cache)
		golden_die(c->path, "out of memory", NULL);
	memcpy(b->slot_cache, before, (size_t)b->num_slots * sizeof(*before));
	b->slot_mapping = golden_need(c, "slot_mapping", "I64", 1, shape);
	b->slot_stride = 1;
	b->block_table = golden_need(c, "block_table", "I32", 2, shape);
	b->num_block_rows = shape[0];
	b->max_blocks = b->block_row_stride = shape[1];
	b->block_col_stride = 1;
	b->block_size = golden_int(c, "cache_block_size");
}

static int same(const int32_t *got, const int32_t *want, int64_t count,
		const char *what, char *why)
{
	for (int64_t i = 0; i < count; i++) {
		if (got[i] == want[i])
			continue;
		snprintf(why, GOLDEN_WHY, "%s %lld is %d, not %d", what,
			 (long long)i, got[i], want[i]);
		return 0;
	}
	return 1;
}

static int run(const struct golden_case *c, struct hash_case *h, int32_t *out,
	       char *why)
{
	struct engram_error err;
	int64_t shape[3];
	const int32_t *want =
		golden_need(c, "expected_hash_ids", "I32", 3, shape);

	if (engram_cpu_write_slots(&h->params, &h->batch, &err) ||
	    engram_cpu_hash(&h->params, &h->batch, out, &err)) {
		snprintf(why, GOLDEN_WHY, "%s", err.message);
		return -1;
	}
	if (!same(out, want, shape[0] * shape[1] * shape[2], "id", why))
		return -1;
	if (!h->batch.slot_cache)
		return 0;
	want = golden_need(c, "expected_cache", "I32", 1, shape);
	return same(h->batch.slot_cache, want, shape[0], "slot", why) ? 0 : -1;
}

int golden_hash(const struct golden_case *c, char *why)
{
	struct hash_case h = {0};
	int64_t shape[3];
	int32_t *out;
	int rc;

	read_params(c, &h);
	read_batch(c, &h);
	read_cache(c, &h);
	golden_need(c, "expected_hash_ids", "I32", 3, shape);
	if (shape[0] != h.batch.num_tokens || shape[1] != h.params.num_layers ||
	    shape[2] != h.geometry->num_cols)
		golden_die(c->path, "unexpected shape:", "expected_hash_ids");
	out = calloc((size_t)(shape[0] * shape[1] * shape[2]), sizeof(*out));
	if (!out)
		golden_die(c->path, "out of memory", NULL);
	rc = run(c, &h, out, why);
	free(out);
	free(h.batch.slot_cache);
	engram_geometry_free(h.geometry);
	return rc;
}
