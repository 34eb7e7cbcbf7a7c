/* SPDX-License-Identifier: Apache-2.0 */
/* engram-synth: what its parts share. */
#ifndef SYNTH_H
#define SYNTH_H

#include <stdbool.h>
#include <stdint.h>

#include "engram_error.h"
#include "engram_geometry.h"

#define SYNTH_LAYERS_MAX 64
#define SYNTH_BLOCK	 32 /* elements that share a scale */

struct synth_options {
	const char *dir;
	int32_t layers[SYNTH_LAYERS_MAX];
	uint32_t num_layers;
	uint32_t engram_vocab_size;
	uint32_t heads;
	uint32_t max_ngram;
	uint32_t dim;
	uint32_t vocab_size;
	uint32_t compressed_vocab_size;
	uint32_t pad_id;
	uint32_t shards;
	uint32_t seed;		  /* of the rows: synth_seeded() */
	const char *prefix;	  /* "layers" or "model.layers" */
	const char *weight_dtype; /* "F8_E4M3" or "U8" */
	const char *scale_dtype;  /* "F8_E8M0" or "U8" */
	bool flat;		  /* config.json without text_config */
	bool split_scales;	  /* a layer's scales in another shard */
	bool single_file;	  /* model.safetensors, no index */
	bool no_token_map;
	bool force;
};

struct synth {
	const struct synth_options *options;
	const struct engram_geometry *geometry;
	const char *dir; /* being written */
	struct engram_error *err;
};

/* config.json, the index and the token map. */
enum engram_status synth_write_config(const struct synth *s);
enum engram_status synth_write_index(const struct synth *s);
enum engram_status synth_write_token_map(const struct synth *s);

/* The safetensors files. */
enum engram_status synth_write_shards(const struct synth *s);
uint64_t synth_data_bytes(const struct synth *s);

/* Which file (from 0) a layer's codes or scales are in. */
uint32_t synth_shard_of(const struct synth_options *o, uint32_t layer,
			bool scale);
void synth_file_name(const struct synth_options *o, uint32_t shard,
		     char out[64]);
/* "layers.14.engram.embed.weight" */
void synth_tensor_name(const struct synth_options *o, uint32_t layer,
		       bool scale, char out[128]);

/* Every file that engram-synth can have written in a directory. */
enum engram_status synth_remove_dir(const char *dir, struct engram_error *err);

#endif
