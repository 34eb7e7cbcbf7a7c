/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What systemd is told, if it started us.  Failures are ignored: the service
 * manager's absence is no fault.
 */
#ifndef ENGRAMD_NOTIFY_H
#define ENGRAMD_NOTIFY_H

#include "server.h"

void notify_ready(void);
void notify_reloading(void);
void notify_stopping(void);
/* Starting or stopping takes longer than the unit's timeout may be. */
void notify_extend(unsigned int seconds);
/* STATUS= and WATCHDOG=1; once a second. */
void notify_tick(const struct server *server);

#endif
