/* SPDX-License-Identifier: Apache-2.0 */
/* The two tensors of one layer, found by their name patterns and checked. */
#ifndef ENGRAMD_CHECKPOINT_TENSORS_H
#define ENGRAMD_CHECKPOINT_TENSORS_H

#include "checkpoint.h"
#include "checkpoint_files.h"

/* Fills weight and scale of a layer whose id and rows are set.  A missing, a
 * second, or a misshapen tensor is an error: a wrong scale gives fluent wrong
 * text, so there is no default for one. */
enum engram_status checkpoint_find_tensors(
	struct checkpoint *c, struct checkpoint_shards *shards,
	const struct checkpoint_options *options,
	struct checkpoint_layer *layer, struct engram_error *err);

#endif
