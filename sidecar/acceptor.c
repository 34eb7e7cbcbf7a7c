/* SPDX-License-Identifier: Apache-2.0 */
#include "acceptor.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "log.h"

#define ACCEPTS_A_TURN 16
#define PAUSE_MS       100

struct acceptor {
	struct event *readable, *resume;
	void (*accepted)(void *ctx, int fd);
	void *ctx;
};

/* Out of descriptors or memory: the connection stays in the backlog, where
 * it would wake the loop at once again, so look away for a moment. */
static void pause_accepting(struct acceptor *a, int why)
{
	static const struct timeval delay = {.tv_usec = PAUSE_MS * 1000};
	const char *text = strerror(why);

	log_warn("can not accept connections for now", LOG_S("error", text));
	event_del(a->readable);
	if (event_add(a->resume, &delay))
		event_add(a->readable, NULL);
}

static void on_resume(evutil_socket_t fd, short what, void *arg)
{
	struct acceptor *a = arg;

	(void)fd;
	(void)what;
	event_add(a->readable, NULL);
}

static void on_connect(evutil_socket_t fd, short what, void *arg)
{
	struct acceptor *a = arg;
	unsigned int i;
	int peer;

	(void)what;
	for (i = 0; i < ACCEPTS_A_TURN; i++) {
		peer = accept4(fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
		if (peer >= 0) {
			a->accepted(a->ctx, peer);
			continue;
		}
		if (errno == EMFILE || errno == ENFILE || errno == ENOMEM ||
		    errno == ENOBUFS)
			pause_accepting(a, errno);
		/* EAGAIN, or a peer that has gone already. */
		return;
	}
}

struct acceptor *acceptor_new(struct event_base *base, int fd,
			      void (*accepted)(void *ctx, int fd), void *ctx)
{
	struct acceptor *a = calloc(1, sizeof(*a));

	if (!a)
		return NULL;
	a->accepted = accepted;
	a->ctx = ctx;
	a->readable = event_new(base, fd, EV_READ | EV_PERSIST, on_connect, a);
	a->resume = event_new(base, -1, 0, on_resume, a);
	if (a->readable && a->resume && !event_add(a->readable, NULL))
		return a;
	acceptor_free(a);
	return NULL;
}

void acceptor_free(struct acceptor *a)
{
	if (!a)
		return;
	if (a->readable)
		event_free(a->readable);
	if (a->resume)
		event_free(a->resume);
	free(a);
}
