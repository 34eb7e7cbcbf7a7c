/* SPDX-License-Identifier: Apache-2.0 */
/* Which safetensors file of a checkpoint holds which tensor. */
#ifndef ENGRAMD_CHECKPOINT_FILES_H
#define ENGRAMD_CHECKPOINT_FILES_H

#include <dirent.h>
#include <jansson.h>

#include "checkpoint.h"
#include "safetensors.h"

#define CHECKPOINT_INDEX "model.safetensors.index.json"

/* For scandir(): without an index these are the weights. */
int checkpoint_is_safetensors(const struct dirent *entry);

struct checkpoint_shard {
	char *name;    /* relative to the directory */
	uint32_t file; /* index into checkpoint.files */
	bool read;     /* header is there */
	struct safetensors header;
};

struct checkpoint_shards {
	json_t *weight_map;  /* tensor -> file name; NULL: there is no index */
	uint32_t index_file; /* index into checkpoint.files, with an index */
	struct checkpoint_shard *shards;
	size_t num_shards;
};

/* Read the index, or without one the header of every *.safetensors. */
enum engram_status checkpoint_shards_open(struct checkpoint *c,
					  struct checkpoint_shards *out,
					  struct engram_error *err);
void checkpoint_shards_free(struct checkpoint_shards *s);

/*
 * Find a tensor.  *tensor is NULL if no file has it.  With an index, a file
 * that is not there, or that lacks a tensor the index promises, is an error.
 */
enum engram_status checkpoint_shards_find(
	struct checkpoint *c, struct checkpoint_shards *s, const char *name,
	const struct safetensors_tensor **tensor, uint32_t *file,
	struct engram_error *err);

/* Add a file to checkpoint.files; *index is its place.  `name` is in the
 * checkpoint's directory, or a path from the root on. */
enum engram_status checkpoint_add_file(struct checkpoint *c, const char *name,
				       uint32_t *index,
				       struct engram_error *err);

#endif
