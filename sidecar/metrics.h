/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What engramd tells Prometheus, and probes: /metrics, /healthz, /readyz.  It
 * counts nothing itself: all is read, when asked, from where it is kept.
 */
#ifndef ENGRAMD_METRICS_H
#define ENGRAMD_METRICS_H

#include "exposition.h"
#include "server.h"

/* Listen as the configuration says, if it does. */
enum engram_status metrics_start(struct server *server,
				 struct engram_error *err);

/* metrics_tables.c, metrics_gather.c */
void metrics_tables(struct exposition *e, const struct server *server);
void metrics_gather(struct exposition *e, const struct gather *gather);

#endif
