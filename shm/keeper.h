/* SPDX-License-Identifier: Apache-2.0 */
/* What the other parts of shm/ use of a keeper; NULL keeps nothing. */
#ifndef ENGRAM_SHM_KEEPER_H
#define ENGRAM_SHM_KEEPER_H

#include "engram_keeper.h"
#include "segment.h"

/* 1: kept. */
int keeper_keep(struct engram_keeper *keeper, const char *name, int fd);
/* A name that is not kept is no fault. */
void keeper_forget(struct engram_keeper *keeper, const char *name);
/* A descriptor of its own, CLOEXEC, of what was inherited under `name`;
 * -1 and errno, ENOENT: nothing was. */
int keeper_open(struct engram_keeper *keeper, const char *name);
/* Everything kept, malloc'd; 0 without memory. */
int keeper_list(struct engram_keeper *keeper,
		struct engram_segment_entry **entries, size_t *count);

#endif
