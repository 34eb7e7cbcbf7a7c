/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tokenizer.json of a model: which token has which id, as the `tokenizers`
 * library loads it, and the map from raw to compressed ids that follows.
 */
#ifndef ENGRAMD_TOKENIZER_H
#define ENGRAMD_TOKENIZER_H

#include <stdbool.h>
#include <stdint.h>

#include "engram_error.h"
#include "json.h"

struct tokenizer {
	const char **tokens; /* [len], borrowed; NULL: a hole */
	uint64_t len;	     /* how many tokens there are; with holes in the
			      * ids some have one from `len` on, and those the
			      * map does not reach */
	json_t *added;	     /* id of each added token */
};

/* Is this JSON a tokenizer, rather than a map? */
bool tokenizer_is(const json_t *root);

/* ENGRAM_ECHECKPOINT: no byte-level BPE, or damaged.  What is read points into
 * `src`, which has to outlive it. */
enum engram_status tokenizer_read(const struct json_source *src,
				  struct tokenizer *out,
				  struct engram_error *err);
void tokenizer_free(struct tokenizer *tokenizer);

/*
 * Has the tokenizer all tokens that the files beside tokenizer.json, which is
 * at `file`, name?  ENGRAM_ECHECKPOINT names one that it has not, or the file
 * that is damaged.
 */
enum engram_status tokenizer_check_beside(const struct json_source *src,
					  const struct tokenizer *tokenizer,
					  const char *file,
					  struct engram_error *err);

/*
 * The compressed id of every raw id below tokenizer->len: those whose keys
 * (token_key.h) are the same get the same, numbered in the order in which they
 * first occur.  *map is malloc'd, int32 [tokenizer->len]; *distinct is how
 * many there are.
 */
enum engram_status tokenizer_map(const struct tokenizer *tokenizer,
				 int32_t **map, uint64_t *distinct,
				 struct engram_error *err);

#endif
