/* SPDX-License-Identifier: Apache-2.0 */
/* A random Engram layer in host memory, and what it makes of a batch, in
 * double precision. */
#ifndef TEST_LAYER_MODEL_H
#define TEST_LAYER_MODEL_H

#include <stddef.h>
#include <stdint.h>

#include "engram_kernels.h"

struct layer_shape {
	uint32_t size; /* ranks */
	uint32_t heads, row_dim, hc_mult, dim;
	int64_t tokens;
	int sequence_parallel;
	int fp8; /* the weight */
};

#define LAYER_EPS   1e-6f
#define LAYER_CLAMP 1e-6f

struct layer_model {
	struct layer_shape s;
	uint32_t in, out;   /* features of wkv */
	int64_t table_rows; /* packed records, fp8 and ue8m0 */
	size_t record;	    /* bytes */
	uint8_t *records;
	uint8_t *codes, *scales; /* the weight as fp8, or */
	uint16_t *bf16;		 /* as bf16 */
	float *weight;		 /* what either means, [out, in] */
	uint16_t *q_weight, *k_weight;
	/* of a batch; hidden has the padding of all ranks, too */
	int64_t hidden_tokens;
	int32_t *ids;
	uint8_t *mask;
	uint16_t *hidden;
	double *want; /* [tokens, hc_mult, dim] */
	uint64_t misses;
};

void layer_model_open(struct layer_model *m, const struct layer_shape *shape);
/* Fill in another batch of as many tokens, and what comes of it. */
void layer_model_batch(struct layer_model *m, uint64_t seed);
void layer_model_close(struct layer_model *m);

struct engram_rows layer_model_rows(const struct layer_model *m,
				    const uint8_t *records);

/* Tokens of a rank, padding included, and the first one. */
int64_t layer_model_share(const struct layer_model *m);
int64_t layer_model_first(const struct layer_model *m, uint32_t rank);

/*
 * What a rank made, against the model: the relative error of `out` and of
 * what was added to the residual stream.  Tokens that are masked or padding
 * have to be `hidden`, bit for bit: returns how many elements are not.
 */
struct layer_error {
	double diff, total; /* squares: out */
	double effect;	    /* squares: out - hidden of the model */
};
int64_t layer_model_compare(const struct layer_model *m, uint32_t rank,
			    const uint16_t *got, struct layer_error *sum);

#endif
