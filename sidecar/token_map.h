/* SPDX-License-Identifier: Apache-2.0 */
/* The map from raw to compressed token ids, as a file beside the model. */
#ifndef ENGRAMD_TOKEN_MAP_H
#define ENGRAMD_TOKEN_MAP_H

#include <stdint.h>

#include "engram_error.h"

/*
 * Read {"token_map": [...]} (or the bare array): entry i is the compressed id
 * of raw id i.  *out is malloc'd, int32 [*len].  Refused unless the values
 * are exactly 0 .. compressed_vocab_size - 1, and unless there are at least
 * `min_len` of them.  *hash is the XXH3-64 of the file.
 */
enum engram_status token_map_read(const char *file,
				  uint32_t compressed_vocab_size,
				  uint64_t min_len, int32_t **out,
				  uint64_t *len, uint64_t *hash,
				  struct engram_error *err);

#endif
