/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Accepts connections of a listening socket, of any family, a few a turn of
 * the loop.  Without descriptors or memory it looks away for a moment.  Loop
 * thread only.
 */
#ifndef ENGRAMD_ACCEPTOR_H
#define ENGRAMD_ACCEPTOR_H

#include <event2/event.h>

#define ACCEPTOR_BACKLOG 128

struct acceptor;

/* `fd`, nonblocking and listening, stays the caller's.  What is accepted is
 * nonblocking and CLOEXEC; the callee owns it.  NULL without memory. */
struct acceptor *acceptor_new(struct event_base *base, int fd,
			      void (*accepted)(void *ctx, int fd), void *ctx);
/* NULL is allowed. */
void acceptor_free(struct acceptor *acceptor);

#endif
