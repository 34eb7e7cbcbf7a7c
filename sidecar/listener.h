/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A Unix socket that clients connect to.  A lock file beside it says that the
 * socket has an owner, so that a stale one can be replaced safely.
 */
#ifndef ENGRAMD_LISTENER_H
#define ENGRAMD_LISTENER_H

#include <event2/event.h>
#include <sys/types.h>

#include "engram_error.h"

struct listener;

struct listener_options {
	const char *path;
	const char *key; /* of the configuration, for errors: "socket.path" */
	mode_t mode;
	const char *group; /* or NULL */
	/* A connection, nonblocking and CLOEXEC; the callee owns it. */
	void (*accepted)(void *ctx, int fd);
	void *ctx;
};

/*
 * ENGRAM_EBUSY: another process owns the socket; ENGRAM_EEXIST: there is
 * something else of that name; ENGRAM_EPERM, ENGRAM_ENOTFOUND, ENGRAM_ESYS.
 */
enum engram_status listener_open(struct event_base *base,
				 const struct listener_options *options,
				 struct listener **out,
				 struct engram_error *err);
/* Remove the names and accept no more.  NULL is allowed. */
void listener_close(struct listener *listener);

#endif
