/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGRAMD_ACCESS_H
#define ENGRAMD_ACCESS_H

#include <stdbool.h>
#include <sys/types.h>

#include "config.h"

/* Is a peer with these credentials on the list?  Root and engramd's own user
 * always are. */
bool access_allowed(const struct config_access *access, uid_t uid, gid_t gid);

#endif
