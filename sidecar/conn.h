/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One connection as a stream of lines: nonblocking, bounded both ways, with
 * descriptors attached to outgoing lines, and one to an incoming one.  Knows
 * nothing of JSON or of what the lines mean.  Loop thread only.
 *
 * Input is buffered up to one line of ops->line_max.  While more than
 * CONN_OUT_PAUSE bytes wait to be read by the peer, no further line is taken
 * from it; a peer for whom more than CONN_OUT_MAX wait (events pile up) is
 * overdue, see conn_ops.
 */
#ifndef ENGRAMD_CONN_H
#define ENGRAMD_CONN_H

#include <event2/event.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engram_error.h"

#define CONN_OUT_PAUSE (1u << 20)
#define CONN_OUT_MAX   (4u << 20)

struct conn;

struct conn_ops {
	/* One line without its newline, valid during the call. */
	void (*line)(void *owner, char *text, size_t len);
	size_t line_max; /* bytes */
	/* A line of more than that; nothing is read after it. */
	void (*too_long)(void *owner);
	/* More than CONN_OUT_MAX bytes wait for the peer. */
	void (*overdue)(void *owner);
	/* The connection has ended and is freed by conn itself after this
	 * call.  Never called from within a function of this header. */
	void (*closed)(void *owner);
};

/* Descriptors of a message are borrowed: `release(hold)` is called once they
 * are sent or never will be. */
struct conn_fds {
	const int *fds;
	size_t count;
	void (*release)(void *hold);
	void *hold;
};

/* Takes over `fd` on success. */
struct conn *conn_new(struct event_base *base, int fd,
		      const struct conn_ops *ops, void *owner);
/* At once, without calling ops->closed. */
void conn_free(struct conn *conn);

/*
 * Queue `text` (malloc'd, taken over, `len` bytes with its newline) and send
 * what can be sent.  `fds` may be NULL.  On ENGRAM_ENOMEM nothing is queued,
 * the connection closes, and `fds` are released.
 */
enum engram_status conn_send(struct conn *conn, char *text, size_t len,
			     const struct conn_fds *fds);

/* The descriptor that came last with what has been read and that nobody has
 * taken, or -1; the caller closes it. */
int conn_take_fd(struct conn *conn);

/* Send what is queued, then close; reads and discards meanwhile, for a few
 * seconds at most. */
void conn_finish(struct conn *conn);
/* Forget queued lines that are not yet begun. */
void conn_discard_output(struct conn *conn);
/* Close as soon as the loop runs again. */
void conn_abort(struct conn *conn);
/* No line is delivered after conn_finish or conn_abort. */
bool conn_finishing(const struct conn *conn);

#endif
