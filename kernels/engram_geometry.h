/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How token ids become row numbers: the primes, offsets and multipliers of
 * the multi-head n-gram hash, derived from the model's configuration.
 *
 * Source of the formulas: the Engram reference (DeepSeek-V4.1), see
 * kernels/README.md.  Multipliers come from NumPy's default_rng, whose
 * stream NumPy does not promise to keep, so what is derived here is stored
 * in each segment and used from there.
 */
#ifndef ENGRAM_GEOMETRY_H
#define ENGRAM_GEOMETRY_H

#include <stdint.h>

#include "engram_error.h"

#pragma GCC visibility push(default) /* libengram exports these */
#ifdef __cplusplus
extern "C" {
#endif

struct engram_geometry_config {
	uint32_t num_layers;	  /* 1..64 */
	const int32_t *layer_ids; /* [num_layers], >= 0, distinct */
	uint32_t max_ngram;	  /* 2..16: the longest n-gram, in tokens */
	uint32_t num_heads;	  /* 1..256 for each n-gram size */
	uint32_t vocab_size;	  /* engram_vocab_size; the prime search starts
				   * at vocab_size - 1, exclusive */
	uint32_t compressed_vocab_size; /* > 0; bounds the multipliers */
	uint32_t min_ngram; /* 1..max_ngram: columns start at this size; 0: 2 */
	/* What the model stores instead of deriving it; NULL: derived.  Moduli
	 * are 1..INT32_MAX and need not be prime; vocab_size is not looked at
	 * with them.  Multipliers are from 1, and such that those times any
	 * compressed id stay below 2^63. */
	const int64_t *primes;	    /* [num_layers, num_cols] */
	const int64_t *multipliers; /* [num_layers, max_ngram] */
};

/* Owned by the caller, freed with engram_geometry_free; read-only after. */
struct engram_geometry {
	uint32_t num_layers;
	uint32_t max_ngram;
	uint32_t num_heads;
	uint32_t num_cols;    /* (max_ngram - min_ngram + 1) * num_heads */
	int32_t *layer_ids;   /* [num_layers] */
	int64_t *primes;      /* [num_layers, num_cols] */
	int64_t *offsets;     /* [num_layers, num_cols] */
	int64_t *multipliers; /* [num_layers, max_ngram] */
	int64_t *rows;	      /* [num_layers]: sum of the layer's primes */
	uint32_t min_ngram;
};

/*
 * ENGRAM_EINVAL names the field out of range; ENGRAM_EGEOMETRY when a layer
 * would have more rows than an int32 id can name; ENGRAM_ENOMEM.
 */
enum engram_status engram_geometry_derive(
	const struct engram_geometry_config *config,
	struct engram_geometry **out, struct engram_error *err);
void engram_geometry_free(struct engram_geometry *geometry);

/*
 * numpy.random.default_rng(seed).integers(0, bound, size=count,
 * dtype=np.int64), bit for bit: SeedSequence, PCG64 (XSL-RR 128/64), Lemire's
 * bounded draw.  bound >= 1.
 */
void engram_numpy_integers(uint64_t seed, uint64_t bound, uint32_t count,
			   int64_t *out);

int engram_is_prime(uint32_t n);

/*
 * The heads of one tensor-parallel rank: whole heads,
 * ceil(num_cols / tp_size) for each rank, the last rank may have fewer.
 * ENGRAM_EINVAL for a rank outside the size, ENGRAM_ESHARD when some rank of
 * that size would have no head.
 */
struct engram_shard {
	uint32_t head_begin, head_end; /* real heads of this rank */
	uint32_t local_heads;	       /* with padded ones: the same for all */
	int64_t row_begin, row_end;    /* of the layer's rows */
};
enum engram_status engram_shard_of(const int64_t *primes /* [num_cols] */,
				   uint32_t num_cols, uint32_t tp_rank,
				   uint32_t tp_size, struct engram_shard *out,
				   struct engram_error *err);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
