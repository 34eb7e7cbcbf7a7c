/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoint directories that are looked at once a second, by one thread of
 * its own: a look blocks for as long as a network file system does not answer.
 * What is looked at is what a download replaces last, by a rename: config.json
 * and the index of the weights, or without an index all of the weights.  Links
 * are followed, so that one which leads elsewhere now is a change.
 */
#ifndef ENGRAMD_WATCH_H
#define ENGRAMD_WATCH_H

#include <stdbool.h>
#include <stdint.h>

#include "mailbox.h"

/* Device, inode, size and mtime of these files, as one number. */
struct watch_identity {
	bool whole;   /* else something is not there, and `hash` is 0 */
	bool indexed; /* the weights have an index */
	uint64_t hash[2];
};

/* May block.  Without `needs_config` a directory is whole without config.json
 * too.  Any thread. */
void watch_look(const char *dir, bool needs_config, struct watch_identity *out);
/* Both are whole, and they are one. */
bool watch_same(const struct watch_identity *a, const struct watch_identity *b);

struct watch;

/*
 * A directory has been as `seen` for as long as it was asked to be; told once,
 * in the loop.  `returned`: before that it was not whole.  One that has had an
 * index is not whole without it.
 */
typedef void watch_told(void *ctx, uint64_t id,
			const struct watch_identity *seen, bool returned);

/* The rest is the loop's.  `box` has to outlive the watch. */
enum engram_status watch_start(struct watch **out, struct mailbox *box,
			       watch_told *told, void *ctx,
			       struct engram_error *err);
/* Ends the thread; one that waits for a file system is left to itself, and
 * touches nothing any more but what is its own.  NULL is allowed. */
void watch_stop(struct watch *watch);

/* *id names it from now on, and is not 0. */
enum engram_status watch_add(struct watch *watch, const char *dir,
			     bool needs_config, uint32_t debounce_seconds,
			     uint64_t *id, struct engram_error *err);
void watch_remove(struct watch *watch, uint64_t id);

#endif
