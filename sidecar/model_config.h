/* SPDX-License-Identifier: Apache-2.0 */
/* The Engram keys of a model's config.json. */
#ifndef ENGRAMD_MODEL_CONFIG_H
#define ENGRAMD_MODEL_CONFIG_H

#include <stdint.h>

#include "engram_error.h"
#include "engram_segment.h"
#include "table_format.h"

struct model_config {
	uint32_t num_layers;
	int32_t layer_ids[ENGRAM_LAYERS_MAX];
	int64_t num_embeddings[ENGRAM_LAYERS_MAX]; /* 0: not stated */
	uint32_t min_ngram, max_ngram;
	uint32_t num_heads;
	uint32_t dim;
	uint32_t engram_vocab_size; /* where the prime search starts */
	uint32_t compressed_vocab_size;
	uint32_t raw_pad_id;
	bool raw_ids;
	uint32_t num_cuts;
	uint32_t cut_tokens[ENGRAM_SEGMENT_CUTS]; /* raw ids */
	/* of the format; NULL: derived */
	const int64_t *moduli, *multipliers;
	/* 0 when absent */
	uint32_t vocab_size;
	uint32_t hidden_size;
	uint32_t hc_mult;
	double rms_norm_eps;
};

/* What the format says of the hash, in place of config.json. */
void model_config_of_format(const struct table_format *format,
			    struct model_config *out);

/* Adds to *out what config.json says, of the hash too if `hash`.  Keys stand at
 * the top level or under "text_config".  Unknown keys are the model's business.
 * *header_hash is the XXH3-64 of the file. */
enum engram_status model_config_read(const char *file, bool hash,
				     struct model_config *out,
				     uint64_t *header_hash,
				     struct engram_error *err);

#endif
