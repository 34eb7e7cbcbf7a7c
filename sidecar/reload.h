/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGRAMD_RELOAD_H
#define ENGRAMD_RELOAD_H

#include "server.h"

/*
 * Read the configuration file again and take over what may change in a
 * running sidecar: tables, access lists, log, memory.lock, loader and
 * max_connections.  ENGRAM_ECONFIG names a key that needs a restart.  On any
 * error the old configuration stays in force.
 */
enum engram_status reload_config(struct server *server,
				 struct engram_error *err);

#endif
