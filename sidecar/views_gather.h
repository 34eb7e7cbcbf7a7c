/* SPDX-License-Identifier: Apache-2.0 */
/* What clients see of gathering.  NULL without memory. */
#ifndef ENGRAMD_VIEWS_GATHER_H
#define ENGRAMD_VIEWS_GATHER_H

#include <jansson.h>

#include "server.h"

/* null when off */
json_t *view_gather(const struct gather *gather);
/* Those of a client. */
json_t *view_rings(const struct client *client);

#endif
