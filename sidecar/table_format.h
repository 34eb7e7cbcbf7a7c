/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How rows are stored and how token ids become row numbers, for models whose
 * config.json does not say it: "rows" and "hash" of a table's configuration.
 */
#ifndef ENGRAMD_TABLE_FORMAT_H
#define ENGRAMD_TABLE_FORMAT_H

#include <stdbool.h>
#include <stdint.h>

#include "engram_segment.h"

struct table_format {
	/* "rows" */
	uint32_t dim;	       /* 0: as config.json says */
	uint32_t dtype;	       /* enum engram_dtype */
	uint32_t scale_scheme; /* enum engram_scale_scheme */
	uint32_t block_size;   /* elements that share a ue8m0 scale */
	float tensor_scale;    /* 0: it is in a tensor */
	uint32_t row_multiple; /* the tensors' rows are filled up to it */

	/* "hash"; with num_layers 0 all of it is as config.json says */
	uint32_t num_layers;
	int32_t layer_ids[ENGRAM_LAYERS_MAX];
	uint32_t min_ngram, max_ngram;
	uint32_t num_heads;
	uint32_t num_cols; /* (max_ngram - min_ngram + 1) * num_heads */
	uint32_t prime_start;
	int64_t *moduli;      /* [num_layers, num_cols], or NULL: primes from
			       * prime_start */
	int64_t *multipliers; /* [num_layers, max_ngram], or NULL: derived */
	bool raw_ids;	      /* no token map */
	uint32_t vocab_size;  /* raw ids are below this; 0: unknown */
	uint32_t compressed_vocab_size;
	uint32_t raw_pad_id;
	uint32_t num_cuts;
	uint32_t cut_tokens[ENGRAM_SEGMENT_CUTS]; /* raw ids */
};

/* A released model's: fp8 with one ue8m0 scale for 32 codes. */
#define TABLE_FORMAT_DEFAULT                              \
	((struct table_format){                           \
		.dtype = ENGRAM_F8_E4M3,                  \
		.scale_scheme = ENGRAM_SCALE_UE8M0_BLOCK, \
		.block_size = 32,                         \
		.row_multiple = 1,                        \
	})

void table_format_free(struct table_format *format);

#endif
