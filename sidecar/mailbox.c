/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "mailbox.h"

static void on_readable(evutil_socket_t fd, short what, void *arg)
{
	struct mailbox *box = arg;
	struct mail *mail, *next;
	uint64_t count;

	(void)what;
	/* Nonblocking; what it fails with (EAGAIN, EINTR) only means that
	 * the list may be empty or that the event fires again. */
	if (read(fd, &count, sizeof(count)) < 0 && errno != EAGAIN &&
	    errno != EINTR)
		return;
	pthread_mutex_lock(&box->lock);
	mail = box->head;
	box->head = NULL;
	box->tail = &box->head;
	pthread_mutex_unlock(&box->lock);
	for (; mail; mail = next) {
		next = mail->next;
		mail->deliver(mail);
	}
}

enum engram_status mailbox_open(struct mailbox *box, struct event_base *base,
				struct engram_error *err)
{
	int rc;

	box->head = NULL;
	box->tail = &box->head;
	rc = pthread_mutex_init(&box->lock, NULL);
	if (rc)
		return engram_error_sys(err, rc, "mailbox: mutex");
	box->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (box->fd < 0) {
		engram_error_sys(err, errno, "mailbox: eventfd");
		goto no_fd;
	}
	box->event = event_new(base, box->fd, EV_READ | EV_PERSIST, on_readable,
			       box);
	if (!box->event || event_add(box->event, NULL)) {
		engram_error_set(err, ENGRAM_ENOMEM, "mailbox: no memory");
		goto no_event;
	}
	return ENGRAM_OK;

no_event:
	if (box->event)
		event_free(box->event);
	box->event = NULL;
	close(box->fd);
no_fd:
	pthread_mutex_destroy(&box->lock);
	return err ? err->status : ENGRAM_ESYS;
}

void mailbox_close(struct mailbox *box)
{
	event_free(box->event);
	close(box->fd);
	pthread_mutex_destroy(&box->lock);
}

void mailbox_post(struct mailbox *box, struct mail *mail)
{
	uint64_t one = 1;
	ssize_t n;

	mail->next = NULL;
	pthread_mutex_lock(&box->lock);
	*box->tail = mail;
	box->tail = &mail->next;
	/* Under the lock, so that the loop can not have delivered the last
	 * letter, and closed the box, before the descriptor is written. */
	do
		n = write(box->fd, &one, sizeof(one));
	while (n < 0 && errno == EINTR);
	pthread_mutex_unlock(&box->lock);
}
