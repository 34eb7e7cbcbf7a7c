/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <sys/socket.h>
#include <unistd.h>

#include "conn.h"
#include "engram_wire.h"
#include "failpoint.h"
#include "log.h"

#define READ_BYTES     (64u << 10)
#define LINES_A_TURN   32 /* then other connections have theirs */
#define FINISH_SECONDS 5

struct message {
	TAILQ_ENTRY(message) entry;
	char *text;
	size_t len, sent;
	struct conn_fds fds;
};

TAILQ_HEAD(message_list, message);

struct conn {
	int fd;
	const struct conn_ops *ops;
	void *owner;
	struct event *readable, *writable, *deadline;
	struct event *ended; /* the peer's end, behind lines not taken yet */
	char *in;
	size_t in_len, in_size;
	size_t in_scanned; /* bytes known to have no newline */
	int in_fd;
	struct message_list out;
	size_t out_bytes;
	bool reading; /* `readable` is added */
	bool paused;  /* lines wait until the peer has read its answers */
	bool finishing, shut, aborted, overdue;
	bool peer_ended;
};

static void release(struct message *message)
{
	if (message->fds.release)
		message->fds.release(message->fds.hold);
	message->fds.release = NULL;
}

static void message_free(struct message *message)
{
	release(message);
	free(message->text);
	free(message);
}

void conn_free(struct conn *conn)
{
	struct message *message, *next;

	for (message = TAILQ_FIRST(&conn->out); message; message = next) {
		next = TAILQ_NEXT(message, entry);
		message_free(message);
	}
	if (conn->readable)
		event_free(conn->readable);
	if (conn->writable)
		event_free(conn->writable);
	if (conn->deadline)
		event_free(conn->deadline);
	if (conn->ended)
		event_free(conn->ended);
	close(conn->fd);
	if (conn->in_fd >= 0)
		close(conn->in_fd);
	free(conn->in);
	free(conn);
}

int conn_take_fd(struct conn *conn)
{
	int fd = conn->in_fd;

	conn->in_fd = -1;
	return fd;
}

static void conn_close(struct conn *conn)
{
	conn->ops->closed(conn->owner);
	conn_free(conn);
}

bool conn_finishing(const struct conn *conn)
{
	return conn->finishing || conn->aborted;
}

void conn_abort(struct conn *conn)
{
	conn->aborted = true;
	event_active(conn->writable, EV_WRITE, 0);
}

static void set_reading(struct conn *conn, bool on)
{
	if (conn->reading == on)
		return;
	conn->reading = on;
	if (!on)
		event_del(conn->readable);
	else if (event_add(conn->readable, NULL))
		conn_abort(conn);
}

static void log_send_failure(int error)
{
	/* That the peer has gone is no news. */
	bool gone = error == EPIPE || error == ECONNRESET;
	const char *text = strerror(error);

	log_at(gone ? LOG_DEBUG : LOG_WARN, "send failed",
	       LOG_S("error", text));
}

/* Send until the queue is empty or the socket is full.  False: the peer is
 * gone. */
static bool flush(struct conn *conn)
{
	struct message *message, *next;
	ssize_t n;

	for (message = TAILQ_FIRST(&conn->out); message; message = next) {
		do {
			bool first = message->sent == 0;

			n = engram_wire_send(conn->fd,
					     message->text + message->sent,
					     message->len - message->sent,
					     first ? message->fds.fds : NULL,
					     first ? message->fds.count : 0);
			if (n == -EAGAIN)
				return event_add(conn->writable, NULL) == 0;
			if (n < 0) {
				log_send_failure((int)-n);
				return false;
			}
			message->sent += (size_t)n;
			conn->out_bytes -= (size_t)n;
			if (first && message->fds.count)
				FAILPOINT(attach_sent);
			if (first)
				release(message);
		} while (message->sent < message->len);
		next = TAILQ_NEXT(message, entry);
		TAILQ_REMOVE(&conn->out, message, entry);
		message_free(message);
	}
	if (conn->finishing && !conn->shut) {
		/* The peer sees the end, and the last line before it even if
		 * it is still sending. */
		conn->shut = true;
		shutdown(conn->fd, SHUT_WR);
	}
	return true;
}

enum taken {
	TAKEN_ALL,   /* no whole line is left */
	TAKEN_SOME,  /* others have their turn first */
	TAKEN_PAUSED /* the peer has to read its answers first */
};

/* Hand on the lines that are buffered. */
static enum taken take_lines(struct conn *conn)
{
	enum taken taken = TAKEN_ALL;
	unsigned int lines = 0;
	size_t begin = 0;

	while (!conn_finishing(conn)) {
		char *newline = NULL;

		if (conn->out_bytes > CONN_OUT_PAUSE) {
			taken = TAKEN_PAUSED;
			break;
		}
		if (lines++ == LINES_A_TURN) {
			taken = TAKEN_SOME;
			break;
		}
		if (conn->in_scanned < conn->in_len)
			newline = memchr(conn->in + conn->in_scanned, '\n',
					 conn->in_len - conn->in_scanned);
		if (!newline) {
			conn->in_scanned = conn->in_len;
			break;
		}
		*newline = '\0';
		conn->ops->line(conn->owner, conn->in + begin,
				(size_t)(newline - conn->in) - begin);
		begin = (size_t)(newline - conn->in) + 1;
		conn->in_scanned = begin;
	}
	if (conn_finishing(conn)) {
		conn->in_len = 0;
		conn->in_scanned = 0;
		return TAKEN_ALL;
	}
	if (begin) {
		memmove(conn->in, conn->in + begin, conn->in_len - begin);
		conn->in_len -= begin;
		conn->in_scanned -= begin;
	}
	/* What came with those lines, and they did not want. */
	if (!conn->in_len && conn->in_fd >= 0)
		close(conn_take_fd(conn));
	if (taken == TAKEN_ALL && conn->in_len == conn->ops->line_max)
		conn->ops->too_long(conn->owner);
	return taken;
}

/* Idle connections hold no buffer. */
static void shrink(struct conn *conn)
{
	if (conn->in_len)
		return;
	free(conn->in);
	conn->in = NULL;
	conn->in_size = 0;
}

static bool grow(struct conn *conn)
{
	size_t size = conn->in_size ? conn->in_size * 2 : READ_BYTES;
	char *in;

	if (conn->in_len < conn->in_size)
		return true;
	if (size > conn->ops->line_max)
		size = conn->ops->line_max;
	if (size == conn->in_size) /* full of whole lines */
		return true;
	in = realloc(conn->in, size);
	if (!in)
		return false;
	conn->in = in;
	conn->in_size = size;
	return true;
}

/* False: the connection has ended. */
static bool receive(struct conn *conn)
{
	char waste[4096];
	char *to = waste;
	size_t room = sizeof(waste), num_fds = 0;
	ssize_t n;
	int fd;

	if (!conn_finishing(conn)) {
		if (!grow(conn))
			return false;
		to = conn->in + conn->in_len;
		room = conn->in_size - conn->in_len;
		if (room == 0)
			return true;
	}
	/* One at most is kept, the last: a peer can have no more than that of
	 * our descriptors.  With none left, what was read is lost, and the
	 * connection with it. */
	n = engram_wire_recv(conn->fd, to, room, &fd, &num_fds, 1);
	if (num_fds) {
		if (conn->in_fd >= 0)
			close(conn->in_fd);
		conn->in_fd = fd;
	}
	if (n == -EAGAIN)
		return true;
	if (n <= 0)
		return false;
	if (!conn_finishing(conn))
		conn->in_len += (size_t)n;
	return true;
}

/* The peer has so long to read more of its answers. */
static bool set_deadline(struct conn *conn)
{
	static const struct timeval limit = {.tv_sec = FINISH_SECONDS};

	return event_add(conn->deadline, &limit) == 0;
}

/* A peer that is not read from may have half-closed all the same, and then can
 * only read.  Each time it has, it gets as long again. */
static bool watch_end(struct conn *conn)
{
	if (conn->peer_ended)
		return set_deadline(conn);
	if (conn->paused)
		return event_add(conn->ended, NULL) == 0;
	event_del(conn->ended);
	if (!conn->finishing)
		event_del(conn->deadline);
	return true;
}

static void on_ended(evutil_socket_t fd, short what, void *arg)
{
	struct conn *conn = arg;

	(void)fd;
	(void)what;
	if (!set_deadline(conn))
		conn_abort(conn);
}

static void on_readable(evutil_socket_t fd, short what, void *arg)
{
	struct conn *conn = arg;
	enum taken taken;

	(void)fd;
	(void)what;
	if (!conn->peer_ended && !receive(conn)) {
		/* Requests before the end are still served: the peer may
		 * have shut only its own side. */
		conn->peer_ended = true;
		set_reading(conn, false);
	}
	taken = take_lines(conn);
	shrink(conn);
	conn->paused = taken == TAKEN_PAUSED;
	if (!watch_end(conn))
		conn_abort(conn);
	if (taken == TAKEN_SOME)
		event_active(conn->readable, EV_READ, 0);
	else if (!conn->peer_ended)
		set_reading(conn, !conn->paused);
	else if (conn->out_bytes == 0)
		conn_close(conn);
	else if (!conn->paused)
		conn_finish(conn);
}

static void on_writable(evutil_socket_t fd, short what, void *arg)
{
	struct conn *conn = arg;

	(void)fd;
	(void)what;
	if (conn->aborted || !flush(conn)) {
		conn_close(conn);
		return;
	}
	if (conn->peer_ended && conn->out_bytes == 0 && !conn->paused) {
		conn_close(conn);
		return;
	}
	if (conn->paused && conn->out_bytes <= CONN_OUT_PAUSE) {
		/* Lines that wait in the buffer bring no new event. */
		conn->paused = false;
		event_active(conn->readable, EV_READ, 0);
	}
}

static void on_deadline(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	conn_close(arg);
}

struct conn *conn_new(struct event_base *base, int fd,
		      const struct conn_ops *ops, void *owner)
{
	struct conn *conn = calloc(1, sizeof(*conn));

	if (!conn)
		return NULL;
	conn->fd = fd;
	conn->in_fd = -1;
	conn->ops = ops;
	conn->owner = owner;
	TAILQ_INIT(&conn->out);
	conn->readable =
		event_new(base, fd, EV_READ | EV_PERSIST, on_readable, conn);
	conn->writable = event_new(base, fd, EV_WRITE, on_writable, conn);
	conn->deadline = event_new(base, -1, 0, on_deadline, conn);
	conn->ended = event_new(base, fd, EV_CLOSED, on_ended, conn);
	if (!conn->readable || !conn->writable || !conn->deadline ||
	    !conn->ended || event_add(conn->readable, NULL)) {
		conn->fd = -1; /* stays the caller's */
		conn_free(conn);
		return NULL;
	}
	conn->reading = true;
	return conn;
}

enum engram_status conn_send(struct conn *conn, char *text, size_t len,
			     const struct conn_fds *fds)
{
	struct message *message = calloc(1, sizeof(*message));

	if (!message) {
		if (fds && fds->release)
			fds->release(fds->hold);
		free(text);
		conn_abort(conn);
		return ENGRAM_ENOMEM;
	}
	message->text = text;
	message->len = len;
	if (fds)
		message->fds = *fds;
	if (conn->shut || conn->aborted) {
		message_free(message);
		return ENGRAM_EDISCONNECTED;
	}
	TAILQ_INSERT_TAIL(&conn->out, message, entry);
	conn->out_bytes += len;
	if (TAILQ_FIRST(&conn->out) == message && !flush(conn))
		conn_abort(conn);
	if (conn->out_bytes > CONN_OUT_MAX && !conn->overdue) {
		conn->overdue = true;
		conn->ops->overdue(conn->owner);
	}
	return ENGRAM_OK;
}

void conn_finish(struct conn *conn)
{
	if (conn_finishing(conn))
		return;
	conn->finishing = true;
	if (!conn->peer_ended)
		set_reading(conn, true);
	if (!set_deadline(conn) || !flush(conn))
		conn_abort(conn);
}

void conn_discard_output(struct conn *conn)
{
	struct message *message, *next;

	for (message = TAILQ_FIRST(&conn->out); message; message = next) {
		next = TAILQ_NEXT(message, entry);
		if (message->sent)
			continue;
		conn->out_bytes -= message->len;
		TAILQ_REMOVE(&conn->out, message, entry);
		message_free(message);
	}
}
