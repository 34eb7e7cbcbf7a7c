/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who keeps memfds for the next owner of an instance, as a directory keeps
 * files: a service manager, for one.  It holds a descriptor of each under a
 * name of engram_segment.h, and hands them to the next process that it starts.
 *
 * Here is what is kept now, inherited or not; telling who keeps it is up to
 * the owner's callbacks.  Any thread.
 */
#ifndef ENGRAM_KEEPER_H
#define ENGRAM_KEEPER_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

struct engram_keeper_ops {
	/* Keep a descriptor of the file behind fd, which stays the caller's;
	 * `count` are kept already.  0: it is not kept, and that has been
	 * said. */
	int (*keep)(void *ctx, const char *name, int fd, size_t count);
	/* Let go of it; returns when that is so, or can not be waited for. */
	void (*forget)(void *ctx, const char *name);
};

struct engram_keeper;

/* Of an instance; NULL without memory.  `ops` is copied. */
struct engram_keeper *engram_keeper_new(const char *instance,
					const struct engram_keeper_ops *ops,
					void *ctx);
/* Closes what was inherited; everything stays kept. */
void engram_keeper_free(struct engram_keeper *keeper);

/*
 * `fd` is kept under `name`, as this process was told at its start; it is
 * taken over.  What is no name of the instance, is no memory file of this
 * user, or has a name that came before (none of the two is known to be the
 * right one), is forgotten: 0.
 */
int engram_keeper_inherit(struct engram_keeper *keeper, const char *name,
			  int fd);

/* How many are kept, and is this one of them? */
size_t engram_keeper_count(struct engram_keeper *keeper);
int engram_keeper_has(struct engram_keeper *keeper, const char *name);

#ifdef __cplusplus
}
#endif
#endif
