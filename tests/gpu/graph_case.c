/* SPDX-License-Identifier: Apache-2.0 */
#include "graph_case.h"

#include <stdlib.h>
#include <string.h>

#include "engram_segment.h"

/* bf16 of either sign between 2^-3 and 2 */
static void fill_bf16(struct rng *rng, uint16_t *to, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		uint64_t bits = rng_next(rng);

		to[i] = (uint16_t)((bits & 0x8000) | 0x3e00 | (bits & 0x1ff));
	}
}

void make_constants(struct constants *c, struct rng *rng)
{
	for (int layer = 0; layer < LAYERS; layer++) {
		int64_t offset = 0;

		for (int i = 0; i < NGRAM; i++)
			c->multipliers[layer][i] =
				rng_in(rng, 1, 1LL << 45) | 1;
		for (int i = 0; i < COLS; i++) {
			c->primes[layer][i] = rng_in(rng, 60, PRIME_MOST);
			c->offsets[layer][i] = offset;
			offset += c->primes[layer][i];
		}
	}
	for (int i = 0; i < VOCAB; i++)
		c->token_map[i] = (int32_t)rng_in(rng, 0, VOCAB / 2);
	c->token_map[PAD_RAW] = PAD;
	fill_bf16(rng, &c->q[0][0][0], sizeof(c->q) / sizeof(uint16_t));
	fill_bf16(rng, &c->k[0][0][0], sizeof(c->k) / sizeof(uint16_t));
}

void make_table(struct table *t, const struct constants *c, struct rng *rng,
		int partial)
{
	for (int layer = 0; layer < LAYERS; layer++) {
		uint8_t *records = t->records[layer];
		int64_t rows = c->offsets[layer][COLS - 1] +
			       c->primes[layer][COLS - 1];
		int64_t begin = partial ? rows / 10 : 0;

		rng_fill(rng, records, (size_t)MAX_ROWS * RECORD);
		for (int64_t i = 0; i < MAX_ROWS * RECORD; i++) {
			uint8_t *byte = &records[i];

			if (i % RECORD >= DIM)
				*byte = (uint8_t)(118 + *byte % 8);
			else if ((*byte & 0x7f) == 0x7f)
				*byte = 0; /* no NaN: the gate spreads it */
		}
		t->rows[layer] = (struct engram_rows){
			.codes = records,
			.scales = records + DIM,
			.code_stride_bytes = RECORD,
			.scale_stride_bytes = RECORD,
			.row_begin = begin,
			.row_end = partial ? rows - rows / 10 : rows,
			.dtype = ENGRAM_F8_E4M3,
			.scale_scheme = ENGRAM_SCALE_UE8M0_BLOCK,
			.dim = DIM,
			.block_size = 32,
			.tensor_scale = 1,
		};
	}
}

/* Every request has blocks of its own, so no slot is written twice. */
static void make_blocks(struct inputs *in, struct rng *rng)
{
	int32_t *blocks = &in->block_table[0][0];

	for (int32_t i = 0; i < REQUESTS * BLOCKS; i++) {
		int64_t j = rng_in(rng, 0, i);

		blocks[i] = blocks[j];
		blocks[j] = i;
	}
}

static int32_t random_id(struct rng *rng)
{
	if (rng_percent(rng, 2))
		return rng_percent(rng, 50) ? VOCAB : -1;
	return (int32_t)rng_in(rng, 0, VOCAB - 1);
}

/* One request's tokens from `first` on. */
static void make_request(struct inputs *in, struct rng *rng, int r, int first,
			 int size)
{
	int64_t start = rng_in(rng, 0, BLOCKS * BLOCK - size);

	if (rng_percent(rng, 30))
		start = 0;
	for (int i = 0; i < size; i++) {
		int64_t p = start + i;

		in->positions[first + i] = p;
		if (rng_percent(rng, 90))
			in->slots[first + i] =
				in->block_table[r][p / BLOCK] * BLOCK +
				p % BLOCK;
	}
	for (int i = 0; i < NGRAM - 1; i++) {
		in->lookback[r][i] =
			rng_percent(rng, 40)
				? -1
				: (int32_t)rng_in(rng, 0, VOCAB - 1);
		in->lookback_dead[r][i] = (uint8_t)rng_percent(rng, 10);
	}
}

void make_inputs(struct inputs *in, struct rng *rng)
{
	int at = 0;

	make_blocks(in, rng);
	for (int t = 0; t < TOKENS; t++) {
		in->ids[t] = random_id(rng);
		in->dead[t] = (uint8_t)rng_percent(rng, 10);
		in->mask[t] = (uint8_t)rng_percent(rng, 80);
		in->positions[t] = rng_in(rng, 0, 5); /* of padding */
		in->slots[t] = -1;
	}
	in->bounds[0] = 0;
	for (int r = 0; r < REQUESTS; r++) {
		int left = TOKENS - at;
		int size = (int)rng_in(rng, 0, left < 9 ? left : 9);

		make_request(in, rng, r, at, size);
		at += size;
		in->bounds[r + 1] = at;
	}
	fill_bf16(rng, &in->hidden[0][0][0][0],
		  sizeof(in->hidden) / sizeof(uint16_t));
}

struct engram_hash_params hash_params(const struct addresses *at,
				      struct layer_pointers *pointers)
{
	struct constants *c = at->constants;

	for (int layer = 0; layer < LAYERS; layer++) {
		pointers->multipliers[layer] = c->multipliers[layer];
		pointers->primes[layer] = c->primes[layer];
		pointers->offsets[layer] = c->offsets[layer];
	}
	return (struct engram_hash_params){
		.num_layers = LAYERS,
		.min_ngram = 2,
		.max_ngram = NGRAM,
		.num_heads = HEADS,
		.multipliers = pointers->multipliers,
		.primes = pointers->primes,
		.offsets = pointers->offsets,
		.token_map = c->token_map,
		.token_map_len = VOCAB,
		.pad_id = PAD,
	};
}

struct engram_hash_batch hash_batch(const struct addresses *at)
{
	struct inputs *in = at->inputs;

	return (struct engram_hash_batch){
		.num_tokens = TOKENS,
		.input_ids = in->ids,
		.input_stride = 1,
		.dead_mask = in->dead,
		.dead_stride = 1,
		.positions = in->positions,
		.position_stride = 1,
		.query_start_loc = in->bounds,
		.query_stride = 1,
		.num_requests = REQUESTS,
		.lookback_ids = in->lookback[0],
		.lookback_row_stride = NGRAM - 1,
		.lookback_col_stride = 1,
		.lookback_dead = in->lookback_dead[0],
		.lookback_dead_row_stride = NGRAM - 1,
		.lookback_dead_col_stride = 1,
		.lookback_depth = NGRAM - 1,
		.slot_cache = at->state->cache,
		.num_slots = SLOTS,
		.slot_mapping = in->slots,
		.slot_stride = 1,
		.block_table = in->block_table[0],
		.block_row_stride = BLOCKS,
		.block_col_stride = 1,
		.num_block_rows = REQUESTS,
		.max_blocks = BLOCKS,
		.block_size = BLOCK,
	};
}

struct engram_lookup_args lookup_args(const struct addresses *at, int layer)
{
	return (struct engram_lookup_args){
		.ids = at->results->ids[0][layer],
		.ids_token_stride = LAYERS * COLS,
		.ids_head_stride = 1,
		.num_tokens = TOKENS,
		.local_heads = COLS,
		.total_heads = COLS,
		.misses = &at->state->misses[layer],
	};
}

struct engram_gate_args gate_args(const struct addresses *at, int layer)
{
	return (struct engram_gate_args){
		.num_tokens = TOKENS,
		.hc_mult = HC,
		.dim = GATE_DIM,
		.hidden = at->inputs->hidden[layer][0][0],
		.hidden_stride = {HC * GATE_DIM, GATE_DIM, 1},
		.kv = at->results->rows[layer][0][0],
		.kv_stride = {COLS * DIM, 1},
		.num_kv_tokens = TOKENS,
		.q_weight = at->constants->q[layer][0],
		.k_weight = at->constants->k[layer][0],
		.q_stride = {GATE_DIM, 1},
		.k_stride = {GATE_DIM, 1},
		.token_mask = at->inputs->mask,
		.mask_stride = 1,
		.eps = 1e-6f,
		.clamp = 1e-6f,
		.out_stride = {HC * GATE_DIM, GATE_DIM, 1},
	};
}

uint16_t *gate_out(const struct addresses *at, int layer)
{
	return layer ? at->inputs->hidden[layer][0][0] : at->results->out[0][0];
}
