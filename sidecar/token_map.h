/* SPDX-License-Identifier: Apache-2.0 */
/* The map from raw to compressed token ids, from a file beside the model. */
#ifndef ENGRAMD_TOKEN_MAP_H
#define ENGRAMD_TOKEN_MAP_H

#include <stdint.h>

#include "engram_error.h"

/*
 * The file is {"token_map": [...]} or the bare array, where entry i is the
 * compressed id of raw id i, or a tokenizer.json to compute it from.  *out is
 * malloc'd, int32 [*len].  Refused unless the values are exactly
 * 0 .. compressed_vocab_size - 1.  There may be fewer entries than the model
 * has rows of embeddings: those are often padded, to ids that no token has.
 * `stated` is where that size is stated, for errors.  *hash is the XXH3-64 of
 * the file.
 */
enum engram_status token_map_read(const char *file,
				  uint32_t compressed_vocab_size,
				  const char *stated, int32_t **out,
				  uint64_t *len, uint64_t *hash,
				  struct engram_error *err);

#endif
