/* SPDX-License-Identifier: Apache-2.0 */
/* What is wrong with a checkpoint, for who wants to know all of it. */
#ifndef ENGRAMD_CHECKPOINT_FAULTS_H
#define ENGRAMD_CHECKPOINT_FAULTS_H

#include <stddef.h>

#include "checkpoint.h"

struct checkpoint_faults {
	struct engram_error *list; /* malloc'd, in the order found */
	size_t count;
};

/*
 * To be called with the status of a step that what follows can do without.
 * Gives the error a fix if it has none.  With c->faults the error is noted,
 * once, and ENGRAM_OK returned, so that reading goes on; without, and for
 * ENGRAM_ENOMEM, `status` is returned and reading ends.
 */
enum engram_status checkpoint_fault(struct checkpoint *c,
				    enum engram_status status,
				    struct engram_error *err);

enum engram_status checkpoint_faults_add(struct checkpoint_faults *faults,
					 const struct engram_error *err);
void checkpoint_faults_free(struct checkpoint_faults *faults);

#endif
