/* SPDX-License-Identifier: Apache-2.0 */
#include "http.h"

#include <arpa/inet.h>
#include <errno.h>
#include <microhttpd.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "acceptor.h"
#include "log.h"

#define ADDRESS_BYTES (INET6_ADDRSTRLEN + sizeof("[]:65535"))
#define PORT_MAX      65535
#define LOG_BYTES     512

struct http {
	struct event_base *base;
	struct http_options options;
	struct MHD_Daemon *daemon;
	struct event *ready, *timer; /* of the daemon */
	struct acceptor *acceptor;
	struct listener *listener;
	int fd;
	char address[ADDRESS_BYTES];
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

/* `response` is taken over; NULL: there is no memory.  MHD_NO closes. */
static enum MHD_Result send_response(struct MHD_Connection *connection,
				     int code, const char *type,
				     struct MHD_Response *response)
{
	enum MHD_Result sent = MHD_NO;

	if (!response)
		return MHD_NO;
	/* A connection that lingers would take one of few. */
	if (MHD_add_response_header(response, "Content-Type", type) &&
	    MHD_add_response_header(response, "Cache-Control", "no-store") &&
	    MHD_add_response_header(response, "Connection", "close") &&
	    (code != MHD_HTTP_METHOD_NOT_ALLOWED ||
	     MHD_add_response_header(response, "Allow", "GET, HEAD")))
		sent = MHD_queue_response(connection, (unsigned int)code,
					  response);
	MHD_destroy_response(response);
	return sent;
}

static enum MHD_Result say(struct MHD_Connection *connection, int code,
			   const char *line)
{
	return send_response(
		connection, code, "text/plain; charset=utf-8",
		MHD_create_response_from_buffer(strlen(line), (void *)line,
						MHD_RESPMEM_PERSISTENT));
}

static enum MHD_Result answer(const struct http *http,
			      struct MHD_Connection *connection,
			      const char *path)
{
	struct http_answer a = {.code = MHD_HTTP_NOT_FOUND};
	struct MHD_Response *response;

	http->options.get(http->options.ctx, path, &a);
	if (a.code == MHD_HTTP_NOT_FOUND) {
		free(a.body);
		return say(connection, a.code, "not found\n");
	}
	if (!a.body)
		return say(connection, MHD_HTTP_SERVICE_UNAVAILABLE,
			   "no memory\n");
	response = MHD_create_response_from_buffer(a.len, a.body,
						   MHD_RESPMEM_MUST_FREE);
	if (!response)
		free(a.body);
	return send_response(connection, a.code, a.type, response);
}

/* Called when the header has come, for each part of a body, and at the end. */
static enum MHD_Result on_request(void *ctx, struct MHD_Connection *connection,
				  const char *path, const char *method,
				  const char *version, const char *body,
				  size_t *body_len, void **request)
{
	static char begun;

	(void)version;
	(void)body;
	if (!*request) {
		*request = &begun;
		return MHD_YES;
	}
	if (*body_len) {
		*body_len = 0; /* nobody reads it */
		return MHD_YES;
	}
	if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 &&
	    strcmp(method, MHD_HTTP_METHOD_HEAD) != 0)
		return say(connection, MHD_HTTP_METHOD_NOT_ALLOWED,
			   "method not allowed\n");
	return answer(ctx, connection, path);
}

/* ---- connections ---- */

static void on_deadline(evutil_socket_t fd, short what, void *arg)
{
	(void)what;
	(void)arg;
	shutdown(fd, SHUT_RDWR); /* which the library sees, and closes it */
}

/* The library's timeout is for a peer that is silent.  This is for one that
 * is not, but never ends. */
static void on_connection(void *ctx, struct MHD_Connection *connection,
			  void **context,
			  enum MHD_ConnectionNotificationCode what)
{
	static const struct timeval limit = {.tv_sec = HTTP_SECONDS};
	const union MHD_ConnectionInfo *info;
	const struct http *http = ctx;
	struct event *deadline = *context;

	if (what == MHD_CONNECTION_NOTIFY_CLOSED) {
		if (deadline)
			event_free(deadline);
		return;
	}
	info = MHD_get_connection_info(connection,
				       MHD_CONNECTION_INFO_CONNECTION_FD);
	deadline =
		event_new(http->base, info->connect_fd, 0, on_deadline, NULL);
	*context = deadline;
	if (!deadline || event_add(deadline, &limit)) {
		log_error("no memory for a connection of HTTP");
		shutdown(info->connect_fd, SHUT_RDWR);
	}
}

/* ---- the loop ---- */

/* When the library wants to run next, other than for what its connections
 * receive. */
static void set_timer(struct http *http)
{
	MHD_UNSIGNED_LONG_LONG ms;
	struct timeval delay;

	if (MHD_get_timeout(http->daemon, &ms) != MHD_YES) {
		event_del(http->timer);
		return;
	}
	delay.tv_sec = (time_t)(ms / 1000);
	delay.tv_usec = (suseconds_t)(ms % 1000 * 1000);
	/* without memory for it: in the next turn of the loop */
	if (event_add(http->timer, &delay))
		event_active(http->timer, EV_TIMEOUT, 0);
}

static void on_run(evutil_socket_t fd, short what, void *arg)
{
	struct http *http = arg;

	(void)fd;
	(void)what;
	MHD_run(http->daemon);
	set_timer(http);
}

static void on_accepted(void *ctx, int fd)
{
	static const struct sockaddr unknown = {.sa_family = AF_UNSPEC};
	struct http *http = ctx;

	/* What it does not take it closes, and says why to on_log. */
	if (MHD_add_connection(http->daemon, fd, &unknown, sizeof(unknown)))
		set_timer(http);
}

static void on_log(void *ctx, const char *format, va_list args)
{
	char text[LOG_BYTES];

	(void)ctx;
	vsnprintf(text, sizeof(text), format, args);
	text[strcspn(text, "\n")] = '\0';
	log_debug("http", LOG_S("text", text));
}

static enum engram_status start_daemon(struct http *http,
				       struct engram_error *err)
{
	const union MHD_DaemonInfo *info;

	errno = ENOMEM; /* unless a system call says more */
	http->daemon = MHD_start_daemon(
		MHD_USE_EPOLL | MHD_USE_NO_LISTEN_SOCKET | MHD_USE_ERROR_LOG, 0,
		NULL, NULL, on_request, http, MHD_OPTION_EXTERNAL_LOGGER,
		on_log, NULL, MHD_OPTION_NOTIFY_CONNECTION, on_connection, http,
		MHD_OPTION_CONNECTION_LIMIT, (unsigned int)HTTP_CONNECTIONS,
		MHD_OPTION_CONNECTION_TIMEOUT,
		(unsigned int)HTTP_SILENT_SECONDS,
		MHD_OPTION_CONNECTION_MEMORY_LIMIT,
		(size_t)HTTP_CONNECTION_BYTES, MHD_OPTION_END);
	if (!http->daemon)
		return engram_error_sys(err, errno, "start the HTTP server");
	info = MHD_get_daemon_info(http->daemon, MHD_DAEMON_INFO_EPOLL_FD);
	if (!info || info->epoll_fd < 0)
		return engram_error_set(err, ENGRAM_EUNSUPPORTED,
					"this libmicrohttpd has no epoll");
	http->ready = event_new(http->base, info->epoll_fd,
				EV_READ | EV_PERSIST, on_run, http);
	http->timer = event_new(http->base, -1, 0, on_run, http);
	if (!http->ready || !http->timer || event_add(http->ready, NULL))
		return engram_error_set(err, ENGRAM_ENOMEM, "no memory");
	return ENGRAM_OK;
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
	enum engram_status status;

	if (!http)
		return engram_error_set(err, ENGRAM_ENOMEM, "no memory");
	http->base = base;
	http->options = *options;
	http->options.path.accepted = on_accepted;
	http->options.path.ctx = http;
	http->fd = -1;
	status = start_daemon(http, err);
	if (!status && options->listen)
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
	if (!http)
		return;
	acceptor_free(http->acceptor);
	listener_close(http->listener);
	if (http->fd >= 0)
		close(http->fd);
	if (http->ready)
		event_free(http->ready);
	if (http->timer)
		event_free(http->timer);
	if (http->daemon)
		MHD_stop_daemon(http->daemon);
	free(http);
}
