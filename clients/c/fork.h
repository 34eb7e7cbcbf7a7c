/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a forked child must not do with its parent's handles.
 *
 * Mappings are MADV_DONTFORK, so a child that reads a table would fault; and a
 * child that keeps the socket open would keep its parent's leases alive after
 * the parent is dead.  So each child closes the sockets it inherited at once,
 * and its handles are marked as foreign.
 */
#ifndef ENGRAM_CLIENT_FORK_H
#define ENGRAM_CLIENT_FORK_H

#include "engram_error.h"

/* One entry of the list of open clients. */
struct fork_entry {
	struct fork_entry *prev, *next;
	int *fds[2]; /* closed and set to -1 in a child; or NULL */
};

/* Start watching: call once per handle, before `entry`'s fds are open. */
enum engram_status fork_watch(struct fork_entry *entry,
			      struct engram_error *err);
void fork_unwatch(struct fork_entry *entry);

/* Changes in each forked child; handles remember the value they were made
 * under.  Costs one load. */
unsigned int fork_generation(void);

/* ENGRAM_EINVAL if the handle is a parent's. */
enum engram_status fork_check(unsigned int generation,
			      struct engram_error *err);

#endif
