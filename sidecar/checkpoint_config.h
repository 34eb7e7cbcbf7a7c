/* SPDX-License-Identifier: Apache-2.0 */
/* The shape and the hash of a model's tables: config.json and the format. */
#ifndef ENGRAMD_CHECKPOINT_CONFIG_H
#define ENGRAMD_CHECKPOINT_CONFIG_H

#include "checkpoint.h"
#include "model_config.h"

#define CHECKPOINT_CONFIG "config.json"

/* Files that every layer's geometry comes from. */
struct checkpoint_common {
	uint32_t files[3];
	uint32_t count;
};

/* Reads what there is into *m, derives c->geometry, and notes the file.  A
 * format that describes the hash needs no config.json. */
enum engram_status checkpoint_read_config(struct checkpoint *c,
					  const struct table_format *format,
					  struct model_config *m,
					  struct checkpoint_common *common,
					  struct engram_error *err);

#endif
