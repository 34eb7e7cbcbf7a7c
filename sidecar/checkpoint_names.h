/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors by the patterns of their names. */
#ifndef ENGRAMD_CHECKPOINT_NAMES_H
#define ENGRAMD_CHECKPOINT_NAMES_H

#include <stdbool.h>

#include "checkpoint.h"
#include "checkpoint_files.h"
#include "safetensors.h"

#define TENSOR_NAME_MAX 512

struct checkpoint_found {
	const struct safetensors_tensor *tensor; /* NULL: there is none */
	const char *pattern;
	char name[TENSOR_NAME_MAX];
	uint32_t file;
};

/* Is this the pattern of a tensor that is stored as several? */
bool checkpoint_names_part(const char *pattern);

/*
 * The one tensor of the layer that some pattern names; of several parts the
 * first.  `what` is for messages: two such tensors are ENGRAM_ECHECKPOINT.
 */
enum engram_status checkpoint_names_find(struct checkpoint *c,
					 struct checkpoint_shards *shards,
					 int32_t layer, const char *what,
					 const char *const *patterns,
					 struct checkpoint_found *out,
					 struct engram_error *err);
/* Another part by the pattern of `found`, which is overwritten. */
enum engram_status checkpoint_names_next(struct checkpoint *c,
					 struct checkpoint_shards *shards,
					 int32_t layer, uint32_t part,
					 struct checkpoint_found *found,
					 struct engram_error *err);
/* ENGRAM_ECHECKPOINT: no pattern names any. */
enum engram_status checkpoint_names_missing(const struct checkpoint *c,
					    int32_t layer, const char *what,
					    const char *const *patterns,
					    struct engram_error *err);

#endif
