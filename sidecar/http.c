/* SPDX-License-Identifier: Apache-2.0 */
#include "http.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <unistd.h>

#include "acceptor.h"
#include "conn.h"
#include "log.h"

#define PATH_BYTES    64 /* none of ours is longer */
#define ADDRESS_BYTES (INET6_ADDRSTRLEN + sizeof("[]:65535"))
#define PORT_MAX      65535

struct peer_conn {
	TAILQ_ENTRY(peer_conn) entry;
	struct http *http;
	struct conn *conn;
	struct event *timeout; /* of the request */
	size_t bytes;	       /* that have come */
	bool asked;	       /* the line of the request has come */
	bool head, answered;
	int code; /* of what is wrong with it, or 0 */
	char path[PATH_BYTES];
};

TAILQ_HEAD(peer_conn_list, peer_conn);

struct http {
	struct event_base *base;
	struct http_options options;
	struct acceptor *acceptor;
	struct listener *listener;
	int fd;
	char address[ADDRESS_BYTES];
	struct peer_conn_list conns; /* the oldest first */
	unsigned int num_conns;
};

/* ---- addresses ---- */

static bool parse_port(const char *text, in_port_t *port)
{
	unsigned long n = 0;
	const char *c;

	for (c = text; *c >= '0' && *c <= '9' && n <= PORT_MAX; c++)
		n = n * 10 + (unsigned long)(*c - '0');
	*port = htons((in_port_t)n);
	return c != text && *c == '\0' && n <= PORT_MAX;
}

bool http_parse_address(const char *text, struct sockaddr_storage *out,
			socklen_t *len)
{
	struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)out;
	struct sockaddr_in *in = (struct sockaddr_in *)out;
	const char *colon = strrchr(text, ':');
	char host[INET6_ADDRSTRLEN + 2];
	size_t n;

	memset(out, 0, sizeof(*out));
	n = colon ? (size_t)(colon - text) : sizeof(host);
	if (n >= sizeof(host))
		return false;
	memcpy(host, text, n);
	host[n] = '\0';
	if (n && host[0] == '[' && host[n - 1] == ']') {
		host[n - 1] = '\0';
		in6->sin6_family = AF_INET6;
		*len = sizeof(*in6);
		return parse_port(colon + 1, &in6->sin6_port) &&
		       inet_pton(AF_INET6, host + 1, &in6->sin6_addr) == 1;
	}
	in->sin_family = AF_INET;
	*len = sizeof(*in);
	return parse_port(colon + 1, &in->sin_port) &&
	       inet_pton(AF_INET, host, &in->sin_addr) == 1;
}

static void show_address(int fd, char *out, size_t size)
{
	struct sockaddr_storage address = {0};
	char host[INET6_ADDRSTRLEN] = "?", port[8] = "?";
	socklen_t len = sizeof(address);

	if (!getsockname(fd, (struct sockaddr *)&address, &len))
		(void)getnameinfo((struct sockaddr *)&address, len, host,
				  sizeof(host), port, sizeof(port),
				  NI_NUMERICHOST | NI_NUMERICSERV);
	snprintf(out, size, strchr(host, ':') ? "[%s]:%s" : "%s:%s", host,
		 port);
}

/* ---- answers ---- */

static const char *reason(int code)
{
	switch (code) {
	case 200:
		return "OK";
	case 400:
		return "Bad Request";
	case 404:
		return "Not Found";
	case 405:
		return "Method Not Allowed";
	case 408:
		return "Request Timeout";
	case 431:
		return "Request Header Fields Too Large";
	case 505:
		return "HTTP Version Not Supported";
	default:
		return "Service Unavailable";
	}
}

/* What there is to say of it, as a line. */
static void say(struct http_answer *answer, int code)
{
	int n;

	answer->code = code;
	answer->type = "text/plain; charset=utf-8";
	n = asprintf(&answer->body, "%s\n", reason(code));
	if (n < 0)
		answer->body = NULL;
	else
		answer->len = (size_t)n;
}

/* Header and body as one text, malloc'd; NULL without memory. */
static char *compose(const struct http_answer *answer, bool head, size_t *len)
{
	char *text;
	int n;

	n = asprintf(&text,
		     "HTTP/1.1 %d %s\r\n"
		     "Content-Type: %s\r\n"
		     "Content-Length: %zu\r\n"
		     "%s"
		     "Cache-Control: no-store\r\n"
		     "Connection: close\r\n\r\n%.*s",
		     answer->code, reason(answer->code), answer->type,
		     answer->len,
		     answer->code == 405 ? "Allow: GET, HEAD\r\n" : "",
		     head ? 0 : (int)answer->len, answer->body);
	if (n < 0)
		return NULL;
	*len = (size_t)n;
	return text;
}

/* Nothing more is read, and it closes once the peer has it. */
static void answer(struct peer_conn *c)
{
	struct http_answer a = {0};
	char *text = NULL;
	size_t len = 0;

	c->answered = true;
	event_del(c->timeout);
	if (!c->code) {
		a.code = 404;
		c->http->options.get(c->http->options.ctx, c->path, &a);
	}
	if (c->code || a.code == 404)
		say(&a, c->code ? c->code : 404);
	if (a.body)
		text = compose(&a, c->head, &len);
	free(a.body);
	if (text && conn_send(c->conn, text, len, NULL) == ENGRAM_OK)
		conn_finish(c->conn);
	else
		conn_abort(c->conn);
}

static void answer_code(struct peer_conn *c, int code)
{
	c->code = code;
	answer(c);
}

/* ---- requests ---- */

/* The path of a target: without a query, and without an authority. */
static void keep_path(struct peer_conn *c, const char *target)
{
	size_t len;

	if (!strncmp(target, "http://", 7)) {
		target = strchr(target + 7, '/');
		target = target ? target : "/";
	}
	len = strcspn(target, "?#");
	if (len >= sizeof(c->path)) /* nobody's */
		len = 0;
	memcpy(c->path, target, len);
	c->path[len] = '\0';
}

/* METHOD SP TARGET SP VERSION; `line` is taken apart. */
static void take_request(struct peer_conn *c, char *line)
{
	char *target = strchr(line, ' '), *version;

	c->asked = true;
	version = target ? strchr(target + 1, ' ') : NULL;
	if (!version || target == line || version == target + 1 ||
	    strncmp(version + 1, "HTTP/", 5) != 0) {
		c->code = 400;
		return;
	}
	*target++ = '\0';
	*version++ = '\0';
	c->head = !strcmp(line, "HEAD");
	if (strcmp(version, "HTTP/1.1") != 0 &&
	    strcmp(version, "HTTP/1.0") != 0)
		c->code = 505;
	else if (!c->head && strcmp(line, "GET") != 0)
		c->code = 405;
	else
		keep_path(c, target);
}

static void on_line(void *owner, char *line, size_t len)
{
	struct peer_conn *c = owner;

	c->bytes += len + 1;
	if (len && line[len - 1] == '\r')
		line[--len] = '\0';
	if (c->bytes > HTTP_REQUEST_BYTES)
		answer_code(c, 431);
	else if (memchr(line, '\0', len))
		answer_code(c, 400);
	else if (!c->asked && len)
		take_request(c, line);
	else if (c->asked && !len)
		answer(c);
	else if (len && (line[0] == ':' || !strchr(line, ':')))
		answer_code(c, 400); /* no field of a header */
	/* what is wrong with the line of the request needs no header */
	if (c->code && !c->answered)
		answer(c);
}

static void on_too_long(void *owner)
{
	answer_code(owner, 431);
}

static void on_overdue(void *owner)
{
	struct peer_conn *c = owner;

	conn_abort(c->conn);
}

/* ---- connections ---- */

/* All but its connection. */
static void forget(struct peer_conn *c)
{
	TAILQ_REMOVE(&c->http->conns, c, entry);
	c->http->num_conns--;
	event_free(c->timeout);
	free(c);
}

static void on_closed(void *owner)
{
	forget(owner);
}

static const struct conn_ops ops = {.line_max = HTTP_REQUEST_BYTES,
				    .line = on_line,
				    .too_long = on_too_long,
				    .overdue = on_overdue,
				    .closed = on_closed};

static void on_timeout(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	answer_code(arg, 408);
}

static void close_now(struct peer_conn *c)
{
	struct conn *conn = c->conn;

	forget(c);
	conn_free(conn);
}

/* Those that have their answer go first; a peer that holds on to connections
 * without asking keeps nobody out. */
static void make_room(struct http *http)
{
	struct peer_conn *c;

	if (http->num_conns < HTTP_CONNECTIONS)
		return;
	TAILQ_FOREACH(c, &http->conns, entry)
	if (c->answered)
		break;
	close_now(c ? c : TAILQ_FIRST(&http->conns));
}

static void on_accepted(void *ctx, int fd)
{
	static const struct timeval limit = {.tv_sec = HTTP_REQUEST_SECONDS};
	struct http *http = ctx;
	struct peer_conn *c = calloc(1, sizeof(*c));

	if (!c)
		goto no_memory;
	c->http = http;
	c->timeout = event_new(http->base, -1, 0, on_timeout, c);
	if (!c->timeout || event_add(c->timeout, &limit))
		goto no_memory;
	c->conn = conn_new(http->base, fd, &ops, c);
	if (!c->conn)
		goto no_memory;
	make_room(http);
	TAILQ_INSERT_TAIL(&http->conns, c, entry);
	http->num_conns++;
	return;

no_memory:
	log_error("no memory for a connection of HTTP");
	if (c && c->timeout)
		event_free(c->timeout);
	free(c);
	close(fd);
}

/* ---- listening ---- */

static enum engram_status listen_failed(const struct http *http, int error,
					struct engram_error *err)
{
	const char *key = http->options.listen_key;
	const char *fix = NULL;

	engram_error_sys(err, error, "listen on %s", http->options.listen);
	if (error == EADDRINUSE)
		fix = "stop what listens there (ss -ltnp shows it)";
	else if (error == EADDRNOTAVAIL)
		fix = "give an address of this machine (ip address)";
	else if (error == EACCES)
		fix = "give a port of 1024 or more";
	else if (error == EAFNOSUPPORT)
		fix = "allow AF_INET and AF_INET6 in the unit "
		      "(RestrictAddressFamilies=)";
	if (fix)
		engram_error_fix(err, "%s, or choose another \"%s\"", fix, key);
	engram_error_path(err, "%s", key);
	return err->status;
}

static enum engram_status open_tcp(struct http *http, struct engram_error *err)
{
	const char *text = http->options.listen;
	struct sockaddr_storage address;
	const int on = 1;
	socklen_t len;

	if (!http_parse_address(text, &address, &len))
		return listen_failed(http, EINVAL, err);
	http->fd = socket(address.ss_family,
			  SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	/* What a former engramd has closed does not stand in the way. */
	if (http->fd < 0 ||
	    setsockopt(http->fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) ||
	    bind(http->fd, (struct sockaddr *)&address, len) ||
	    listen(http->fd, ACCEPTOR_BACKLOG))
		return listen_failed(http, errno, err);
	show_address(http->fd, http->address, sizeof(http->address));
	http->acceptor = acceptor_new(http->base, http->fd, on_accepted, http);
	if (!http->acceptor)
		return engram_error_set(err, ENGRAM_ENOMEM, "no memory");
	return ENGRAM_OK;
}

enum engram_status http_open(struct event_base *base,
			     const struct http_options *options,
			     struct http **out, struct engram_error *err)
{
	struct http *http = calloc(1, sizeof(*http));
	enum engram_status status = ENGRAM_OK;

	if (!http)
		return engram_error_set(err, ENGRAM_ENOMEM, "no memory");
	http->base = base;
	http->options = *options;
	http->options.path.accepted = on_accepted;
	http->options.path.ctx = http;
	http->fd = -1;
	TAILQ_INIT(&http->conns);
	if (options->listen)
		status = open_tcp(http, err);
	if (!status && options->path.path)
		status = listener_open(base, &http->options.path,
				       &http->listener, err);
	if (status) {
		http_close(http);
		return status;
	}
	*out = http;
	return ENGRAM_OK;
}

const char *http_address(const struct http *http)
{
	return http->address[0] ? http->address : NULL;
}

void http_close(struct http *http)
{
	struct peer_conn *c, *next;

	if (!http)
		return;
	acceptor_free(http->acceptor);
	listener_close(http->listener);
	if (http->fd >= 0)
		close(http->fd);
	for (c = TAILQ_FIRST(&http->conns); c; c = next) {
		next = TAILQ_NEXT(c, entry);
		close_now(c);
	}
	free(http);
}
