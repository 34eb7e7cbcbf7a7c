/* SPDX-License-Identifier: Apache-2.0 */
#include <unistd.h>

#include "access.h"

bool access_allowed(const struct config_access *access, uid_t uid, gid_t gid)
{
	size_t i;

	if (access->anyone || uid == 0 || uid == geteuid())
		return true;
	for (i = 0; i < access->num_uids; i++)
		if (access->uids[i] == uid)
			return true;
	for (i = 0; i < access->num_gids; i++)
		if (access->gids[i] == gid)
			return true;
	return false;
}
