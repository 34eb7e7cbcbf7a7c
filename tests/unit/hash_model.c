/* SPDX-License-Identifier: Apache-2.0 */
#include "hash_model.h"

static const int64_t primes0[] = {101, 103, 107, 109, 113, 127, 131, 137, 139};
static const int64_t primes1[] = {149, 151, 157, 163, 167, 173, 179, 181, 191};
static const int64_t offsets0[] = {0, 101, 204, 311, 420, 533, 660, 791, 928};
static const int64_t offsets1[] = {0, 149, 300, 457, 620, 787, 960, 1139, 1320};
static const int64_t multipliers0[] = {74948455964533, 4733541935673,
				       35169622865325, 72361803859403};
static const int64_t multipliers1[] = {66229043306961, 50379092239447,
				       30241991916659, 80804046575241};
static const int64_t *const primes[] = {primes0, primes1};
static const int64_t *const offsets[] = {offsets0, offsets1};
static const int64_t *const multipliers[] = {multipliers0, multipliers1};

/* (id * 7 + 3) mod 41: several ids share a compressed one */
static const int32_t token_map[MODEL_VOCAB] = {
	3,  10, 17, 24, 31, 38, 4,  11, 18, 25, 32, 39, 5,  12, 19, 26, 33,
	40, 6,	13, 20, 27, 34, 0,  7,	14, 21, 28, 35, 1,  8,	15, 22, 29,
	36, 2,	9,  16, 23, 30, 37, 3,	10, 17, 24, 31, 38, 4,	11, 18};

const struct engram_hash_params model_params = {
	.num_layers = MODEL_LAYERS,
	.min_ngram = 2,
	.max_ngram = MODEL_NGRAM,
	.num_heads = MODEL_HEADS,
	.multipliers = multipliers,
	.primes = primes,
	.offsets = offsets,
	.token_map = token_map,
	.token_map_len = MODEL_VOCAB,
	.pad_id = MODEL_PAD,
};

int32_t model_compress(int32_t id)
{
	return (id * 7 + 3) % 41;
}

static int64_t value_at(const struct model_token *text, int64_t token,
			int64_t shift)
{
	for (int64_t back = 0; back <= shift; back++)
		if (token - back < 0 || text[token - back].dead)
			return MODEL_PAD;
	return model_compress(text[token - shift].id);
}

void model_hash(const struct model_token *text, int64_t tokens, int32_t *out)
{
	for (int64_t token = 0; token < tokens; token++)
		for (int layer = 0; layer < MODEL_LAYERS; layer++)
			for (int col = 0; col < MODEL_COLS; col++) {
				int ngram = 2 + col / MODEL_HEADS;
				int64_t x = 0;

				for (int k = 0; k < ngram; k++)
					x ^= value_at(text, token, k) *
					     multipliers[layer][k];
				*out++ = (int32_t)(x % primes[layer][col] +
						   offsets[layer][col]);
			}
}
