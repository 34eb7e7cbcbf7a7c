/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads speak to the event loop: a list under a mutex and an eventfd.  A
 * letter is part of its sender's structure, so posting can not fail.
 */
#ifndef ENGRAMD_MAILBOX_H
#define ENGRAMD_MAILBOX_H

#include <event2/event.h>
#include <pthread.h>

#include "engram_error.h"

struct mail {
	struct mail *next;
	/* Runs in the loop; may free what the letter is part of. */
	void (*deliver)(struct mail *mail);
};

struct mailbox {
	pthread_mutex_t lock;
	struct mail *head, **tail;
	int fd;
	struct event *event;
};

enum engram_status mailbox_open(struct mailbox *box, struct event_base *base,
				struct engram_error *err);
/* Nobody may post any more; letters not delivered are dropped. */
void mailbox_close(struct mailbox *box);
/* Any thread.  The letter must stay until it is delivered. */
void mailbox_post(struct mailbox *box, struct mail *mail);

#endif
