/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections become clients here, and stop being ones.
 */
#ifndef ENGRAMD_CLIENTS_H
#define ENGRAMD_CLIENTS_H

#include "server.h"

/* For the listener: greet, or refuse.  `ctx` is the server. */
void clients_accept(void *ctx, int fd);
/* The sidecar stops: end all leases, and each connection once what waits for
 * it is sent. */
void clients_finish(struct server *server);
/* Who has leases of a generation, "pid 4711 (engine), ..."; "" for nobody. */
void clients_name_holders(const struct server *server,
			  const struct generation *gen, char *out, size_t size);
/* Close all at once. */
void clients_free(struct server *server);

#endif
