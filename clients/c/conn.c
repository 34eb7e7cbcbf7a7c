/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "conn.h"

#define CONN_BUFFER_MIN 4096u

int64_t conn_now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * INT64_C(1000000000) + ts.tv_nsec;
}

int64_t conn_deadline(int timeout_ms)
{
	if (timeout_ms < 0)
		return CONN_NEVER;
	return conn_now() + timeout_ms * INT64_C(1000000);
}

int conn_poll_ms(int64_t deadline)
{
	int64_t left;

	if (deadline == CONN_NEVER)
		return -1;
	left = deadline - conn_now();
	if (left <= 0)
		return 0;
	/* Rounded up, so that the last wait is not a spin. */
	left = (left + 999999) / 1000000;
	return left > INT_MAX ? INT_MAX : (int)left;
}

void conn_init(struct conn *conn)
{
	memset(conn, 0, sizeof(*conn));
	conn->sock = -1;
}

static enum engram_status not_reachable(int sys_errno, const char *path,
					struct engram_error *err)
{
	char text[128];

	if (sys_errno == EACCES || sys_errno == EPERM) {
		engram_error_sys(err, sys_errno, "connect to \"%s\"", path);
		engram_error_fix(err, "join the group of the socket, or ask "
				      "for access in engramd's configuration");
	} else {
		engram_error_set(
			err, ENGRAM_EDISCONNECTED,
			"engramd is not reachable at \"%s\": %s", path,
			sys_errno == EAGAIN
				? "it takes no connections"
				: strerror_r(sys_errno, text, sizeof(text)));
		engram_error_fix(err, "start engramd, or name its socket in "
				      "ENGRAMD_SOCKET");
		if (err)
			err->sys_errno = sys_errno;
	}
	engram_error_path(err, "%s", path);
	return sys_errno == EACCES || sys_errno == EPERM ? ENGRAM_EPERM
							 : ENGRAM_EDISCONNECTED;
}

enum engram_status conn_open(struct conn *conn, const char *path,
			     struct engram_error *err)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	size_t len = strlen(path);
	int sock, sys_errno;

	if (!len || len >= sizeof(addr.sun_path)) {
		engram_error_set(err, ENGRAM_EINVAL,
				 "socket path \"%.120s\": %zu bytes, must be "
				 "1..%zu",
				 path, len, sizeof(addr.sun_path) - 1);
		engram_error_fix(err, "use a shorter path, or a relative one");
		return ENGRAM_EINVAL;
	}
	memcpy(addr.sun_path, path, len);
	sock = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (sock < 0)
		return engram_error_sys(err, errno, "socket");
	/* A Unix socket connects at once or fails; there is no EINPROGRESS. */
	while (connect(sock, (struct sockaddr *)&addr, sizeof(addr))) {
		if (errno == EINTR)
			continue;
		sys_errno = errno;
		close(sock);
		return not_reachable(sys_errno, path, err);
	}
	conn->sock = sock;
	return ENGRAM_OK;
}

static void drop_fds(struct conn *conn)
{
	while (conn->num_fds)
		close(conn->fds[--conn->num_fds]);
	conn->num_groups = 0;
}

void conn_close(struct conn *conn)
{
	if (conn->sock >= 0)
		close(conn->sock);
	drop_fds(conn);
	free(conn->buf);
	conn_init(conn);
}

static enum engram_status gone(struct conn *conn, int sys_errno,
			       struct engram_error *err)
{
	char text[128];

	conn_close(conn);
	engram_error_set(
		err, ENGRAM_EDISCONNECTED, "engramd closed the connection%s%s",
		sys_errno ? ": " : "",
		sys_errno ? strerror_r(sys_errno, text, sizeof(text)) : "");
	engram_error_fix(err, "see engramd's log; open a new connection when "
			      "it is up");
	if (err)
		err->sys_errno = sys_errno;
	return ENGRAM_EDISCONNECTED;
}

static enum engram_status closed(struct engram_error *err)
{
	engram_error_set(err, ENGRAM_EDISCONNECTED,
			 "the connection to engramd is closed");
	engram_error_fix(err, "open a new connection");
	return ENGRAM_EDISCONNECTED;
}

/* Wait for `events`; ENGRAM_ETIMEDOUT has no text, callers know more. */
static enum engram_status wait_for(struct conn *conn, short events,
				   int64_t deadline, struct engram_error *err)
{
	struct pollfd pfd = {.fd = conn->sock, .events = events};
	int n;

	do {
		n = poll(&pfd, 1, conn_poll_ms(deadline));
		if (n > 0)
			return ENGRAM_OK;
	} while (n < 0 ? errno == EINTR : conn_poll_ms(deadline) != 0);
	if (n < 0)
		return engram_error_sys(err, errno, "poll");
	return engram_error_set(err, ENGRAM_ETIMEDOUT, "no answer in time");
}

enum engram_status conn_send(struct conn *conn, const char *data, size_t len,
			     int64_t deadline, struct engram_error *err)
{
	return conn_send_fd(conn, data, len, -1, deadline, err);
}

enum engram_status conn_send_fd(struct conn *conn, const char *data, size_t len,
				int fd, int64_t deadline,
				struct engram_error *err)
{
	enum engram_status status;
	ssize_t n;

	if (conn->sock < 0)
		return closed(err);
	while (len) {
		n = engram_wire_send(conn->sock, data, len, &fd, fd >= 0);
		if (n >= 0) {
			fd = n ? -1 : fd;
			data += n;
			len -= (size_t)n;
			continue;
		}
		if (n != -EAGAIN)
			return gone(conn, (int)-n, err);
		status = wait_for(conn, POLLOUT, deadline, err);
		if (status) {
			conn_close(conn);
			return status;
		}
	}
	return ENGRAM_OK;
}

/* Room for at least one more byte behind the partial line. */
static enum engram_status make_room(struct conn *conn, struct engram_error *err)
{
	size_t cap;
	char *buf;

	if (conn->start) {
		memmove(conn->buf, conn->buf + conn->start,
			conn->len - conn->start);
		conn->len -= conn->start;
		conn->scanned -= conn->start;
		conn->start = 0;
	}
	if (conn->len < conn->cap)
		return ENGRAM_OK;
	if (conn->cap >= ENGRAM_LINE_MAX) {
		conn_close(conn);
		return engram_error_set(err, ENGRAM_EPROTOCOL,
					"engramd sent a line over %u bytes",
					ENGRAM_LINE_MAX);
	}
	cap = conn->cap ? conn->cap * 2 : CONN_BUFFER_MIN;
	buf = realloc(conn->buf, cap);
	if (!buf) {
		conn_close(conn);
		return engram_error_set(err, ENGRAM_ENOMEM,
					"no memory for an answer of %zu bytes",
					cap);
	}
	conn->buf = buf;
	conn->cap = cap;
	return ENGRAM_OK;
}

static enum engram_status out_of_fds(struct conn *conn,
				     struct engram_error *err)
{
	struct rlimit limit = {0};

	/* The answer is lost and with it the number of its lease: only
	 * closing the connection makes engramd let go of it. */
	conn_close(conn);
	getrlimit(RLIMIT_NOFILE, &limit);
	engram_error_set(err, ENGRAM_ESYS,
			 "no room for the descriptors of the answer: this "
			 "process may have %llu open",
			 (unsigned long long)limit.rlim_cur);
	engram_error_fix(err, "raise RLIMIT_NOFILE (ulimit -n) and open the "
			      "connection again");
	engram_error_figures(err, 0, limit.rlim_cur);
	if (err)
		err->sys_errno = EMFILE;
	return ENGRAM_ESYS;
}

/* One recvmsg into the buffer. */
static enum engram_status receive(struct conn *conn, int64_t deadline,
				  struct engram_error *err)
{
	enum engram_status status = make_room(conn, err);
	size_t before = conn->num_fds;
	ssize_t n;

	while (!status) {
		n = engram_wire_recv(conn->sock, conn->buf + conn->len,
				     conn->cap - conn->len, conn->fds,
				     &conn->num_fds, ENGRAM_FDS_MAX);
		if (n > 0)
			break;
		if (n == -EMSGSIZE)
			return out_of_fds(conn, err);
		if (n != -EAGAIN)
			return gone(conn, (int)-n, err);
		status = wait_for(conn, POLLIN, deadline, err);
	}
	if (status)
		return status;
	conn->len += (size_t)n;
	if (conn->num_fds == before)
		return ENGRAM_OK;
	if (conn->num_groups == CONN_GROUPS) {
		conn_close(conn);
		return engram_error_set(err, ENGRAM_EPROTOCOL,
					"engramd sent descriptors that belong "
					"to no answer");
	}
	conn->groups[conn->num_groups++] = conn->num_fds - before;
	return ENGRAM_OK;
}

enum engram_status conn_line(struct conn *conn, int64_t deadline, char **line,
			     size_t *len, struct engram_error *err)
{
	enum engram_status status;
	char *end;

	if (conn->sock < 0)
		return closed(err);
	/* Between lines no descriptor can belong to what is still to come. */
	if (conn->start == conn->len)
		drop_fds(conn);
	while (!(end = conn->len > conn->scanned
			       ? memchr(conn->buf + conn->scanned, '\n',
					conn->len - conn->scanned)
			       : NULL)) {
		conn->scanned = conn->len;
		status = receive(conn, deadline, err);
		if (status)
			return status;
	}
	*end = '\0';
	*line = conn->buf + conn->start;
	*len = (size_t)(end - *line);
	conn->start += *len + 1;
	conn->scanned = conn->start;
	return ENGRAM_OK;
}

int conn_buffered(const struct conn *conn)
{
	return conn->start < conn->len;
}

void conn_take_fds(struct conn *conn, struct conn_fds *out)
{
	out->count = 0;
	if (!conn->num_groups)
		return;
	out->count = conn->groups[0];
	memcpy(out->fd, conn->fds, out->count * sizeof(out->fd[0]));
	conn->num_fds -= out->count;
	memmove(conn->fds, conn->fds + out->count,
		conn->num_fds * sizeof(conn->fds[0]));
	conn->num_groups--;
	memmove(conn->groups, conn->groups + 1,
		conn->num_groups * sizeof(conn->groups[0]));
}

void conn_close_fds(struct conn_fds *fds)
{
	while (fds->count)
		close(fds->fd[--fds->count]);
}
