/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What test_graph works on: structures of plain arrays, one in host memory
 * and its like in device memory.  `&device->member` is a device address.
 */
#ifndef ENGRAM_GRAPH_CASE_H
#define ENGRAM_GRAPH_CASE_H

#include "engram_cuda_kernels.h"
#include "random.h"

#define TOKENS	   24
#define REQUESTS   6
#define LAYERS	   2
#define NGRAM	   4
#define HEADS	   3
#define COLS	   ((NGRAM - 1) * HEADS)
#define VOCAB	   200
#define PAD_RAW	   5 /* a raw id that compresses to the pad id */
#define PAD	   9
#define BLOCK	   4 /* slots of a block */
#define BLOCKS	   12
#define SLOTS	   (REQUESTS * BLOCKS * BLOCK)
#define DIM	   256
#define SCALES	   (DIM / 32)
#define RECORD	   (DIM + SCALES)
#define HC	   2
#define GATE_DIM   (COLS * DIM / (HC + 1)) /* a token's rows are its kv */
#define PRIME_MOST 120
#define MAX_ROWS   (COLS * PRIME_MOST)

struct constants {
	int64_t multipliers[LAYERS][NGRAM];
	int64_t primes[LAYERS][COLS], offsets[LAYERS][COLS];
	int32_t token_map[VOCAB];
	uint16_t q[LAYERS][HC][GATE_DIM], k[LAYERS][HC][GATE_DIM];
};

/* What changes from replay to replay. */
struct inputs {
	int64_t positions[TOKENS], slots[TOKENS];
	int32_t ids[TOKENS], bounds[REQUESTS + 1];
	int32_t lookback[REQUESTS][NGRAM - 1];
	int32_t block_table[REQUESTS][BLOCKS];
	/* of each layer; the second is also its output */
	uint16_t hidden[LAYERS][TOKENS][HC][GATE_DIM];
	uint8_t dead[TOKENS], lookback_dead[REQUESTS][NGRAM - 1];
	uint8_t mask[TOKENS];
};

/* What stays from replay to replay. */
struct state {
	uint64_t rejects, misses[LAYERS];
	int32_t cache[SLOTS];
};

struct results {
	int32_t ids[TOKENS][LAYERS][COLS];
	uint16_t rows[LAYERS][TOKENS][COLS][DIM];
	uint16_t out[TOKENS][HC][GATE_DIM]; /* of the first layer */
};

/* Two tables that lookups are switched between. */
#define TABLES 2
struct table {
	uint8_t *records[LAYERS]; /* [MAX_ROWS, RECORD], host addresses */
	struct engram_rows rows[LAYERS]; /* for the host */
};

void make_constants(struct constants *c, struct rng *rng);
/* `records` have been allocated; the second table lacks some rows. */
void make_table(struct table *t, const struct constants *c, struct rng *rng,
		int partial);
void make_inputs(struct inputs *in, struct rng *rng);

/* The arguments of a layer; all addresses host's or all device's. */
struct addresses {
	struct constants *constants;
	struct inputs *inputs;
	struct state *state;
	struct results *results;
};
struct layer_pointers {
	const int64_t *multipliers[LAYERS], *primes[LAYERS], *offsets[LAYERS];
};
struct engram_hash_params hash_params(const struct addresses *at,
				      struct layer_pointers *pointers);
struct engram_hash_batch hash_batch(const struct addresses *at);
struct engram_lookup_args lookup_args(const struct addresses *at, int layer);
struct engram_gate_args gate_args(const struct addresses *at, int layer);
uint16_t *gate_out(const struct addresses *at, int layer);

/*
 * Compares one replay with the CPU backend: `before` are the inputs,
 * `hidden` what the second layer's output became, `got` and `after` what the
 * GPU gave.  `state` is the model's, which moves on.  0, or -1 and `why`.
 */
int check_replay(const struct constants *constants, const struct table *table,
		 const struct inputs *before, struct state *state,
		 const struct inputs *hidden, const struct results *got,
		 const struct state *after, char *why);

#endif
