/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Notifications to the connections that subscribed.
 */
#ifndef ENGRAMD_EVENTS_H
#define ENGRAMD_EVENTS_H

#include "server.h"

/* The present state, to one subscriber. */
void events_snapshot(struct client *client);
/* At once, to all. */
void events_table(struct server *server, struct table *table);
void events_job(struct server *server, struct job *job);
void events_client(struct server *server, const struct client *client,
		   const char *change);
/* A superseded generation has been held for too long. */
void events_overdue(struct server *server, const struct generation *gen);
void events_shutdown(struct server *server);
/* Once a second: progress of jobs, and tables marked `changed`. */
void events_tick(struct server *server);
/* The subscriber does not read: tell it, and close. */
void events_drop(struct client *client);

#endif
