/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A small table to hash with, and the obvious way to hash: a request is one
 * text, an n-gram looks back in it, a dead token ends the look.  Knows
 * nothing of batches, windows and caches.
 */
#ifndef ENGRAM_HASH_MODEL_H
#define ENGRAM_HASH_MODEL_H

#include "engram_kernels.h"

#define MODEL_LAYERS 2
#define MODEL_NGRAM  4
#define MODEL_HEADS  3
#define MODEL_COLS   ((MODEL_NGRAM - 1) * MODEL_HEADS)
#define MODEL_VOCAB  50
#define MODEL_PAD    7

struct model_token {
	int32_t id;
	uint8_t dead;
};

/* Static, read-only.  The map takes no id to itself, and 0 not to 0. */
extern const struct engram_hash_params model_params;

int32_t model_compress(int32_t id);

/* All of a text's ids: out[tokens, MODEL_LAYERS, MODEL_COLS]. */
void model_hash(const struct model_token *text, int64_t tokens, int32_t *out);

#endif
