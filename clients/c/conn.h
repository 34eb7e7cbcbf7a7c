/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stream to engramd: lines in, lines out, and the descriptors that come
 * with them.  Knows nothing of JSON.  Not thread-safe.
 */
#ifndef ENGRAM_CLIENT_CONN_H
#define ENGRAM_CLIENT_CONN_H

#include <stddef.h>
#include <stdint.h>

#include "engram_error.h"
#include "engram_wire.h"

/* Messages with descriptors whose line has not been read yet: at most that of
 * a call that timed out, and that of the present one; more is a fault. */
#define CONN_GROUPS 4

/* Descriptors of one message; the holder closes them. */
struct conn_fds {
	int fd[ENGRAM_FDS_MAX];
	size_t count;
};

struct conn {
	int sock;  /* -1: closed */
	char *buf; /* [start, len) has been received and not been read */
	size_t start, scanned, len, cap;
	int fds[ENGRAM_FDS_MAX]; /* received, in groups of one message each */
	size_t num_fds;
	size_t groups[CONN_GROUPS];
	size_t num_groups;
};

/* Deadlines are CLOCK_MONOTONIC nanoseconds, or CONN_NEVER. */
#define CONN_NEVER INT64_MAX
int64_t conn_now(void);
/* timeout_ms < 0 is CONN_NEVER. */
int64_t conn_deadline(int timeout_ms);
/* What is left of it, for poll: 0..INT_MAX, or -1. */
int conn_poll_ms(int64_t deadline);

void conn_init(struct conn *conn);
/* ENGRAM_EDISCONNECTED when nobody listens or takes connections there, with
 * sys_errno (EAGAIN: the backlog is full); ENGRAM_EPERM. */
enum engram_status conn_open(struct conn *conn, const char *path,
			     struct engram_error *err);
/* Also closes descriptors that nobody has taken. */
void conn_close(struct conn *conn);

/* Send all of it, or close the connection: half a line would garble the
 * next one. */
enum engram_status conn_send(struct conn *conn, const char *data, size_t len,
			     int64_t deadline, struct engram_error *err);
/* The same with a descriptor, or -1, which stays the caller's. */
enum engram_status conn_send_fd(struct conn *conn, const char *data, size_t len,
				int fd, int64_t deadline,
				struct engram_error *err);

/*
 * The next line, without "\n" but with a NUL, valid until the next call.
 * ENGRAM_ETIMEDOUT leaves the connection as it is; after any other error it
 * is closed.
 */
enum engram_status conn_line(struct conn *conn, int64_t deadline, char **line,
			     size_t *len, struct engram_error *err);

/* Has anything been received that no line was made of yet? */
int conn_buffered(const struct conn *conn);

/* The descriptors of the oldest message that had any. */
void conn_take_fds(struct conn *conn, struct conn_fds *out);
void conn_close_fds(struct conn_fds *fds);

#endif
