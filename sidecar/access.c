/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "access.h"

#ifndef SO_PEERGROUPS /* Linux 4.13 */
#define SO_PEERGROUPS 59
#endif

/* A kernel that does not tell leaves the primary group alone. */
static enum engram_status read_groups(int fd, struct peer *peer,
				      struct engram_error *err)
{
	socklen_t len = 0;

	if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, NULL, &len) == 0 ||
	    errno != ERANGE)
		return ENGRAM_OK;
	peer->groups = malloc(len);
	if (!peer->groups)
		return engram_error_set(err, ENGRAM_ENOMEM, "no memory");
	if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, peer->groups, &len)) {
		engram_error_sys(err, errno, "groups of the peer");
		peer_free(peer);
		return err->status;
	}
	peer->num_groups = len / sizeof(gid_t);
	return ENGRAM_OK;
}

enum engram_status peer_read(int fd, struct peer *peer,
			     struct engram_error *err)
{
	socklen_t len = sizeof(struct ucred);
	struct ucred cred;

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len))
		return engram_error_sys(err, errno, "credentials of the peer");
	*peer = (struct peer){
		.pid = cred.pid, .uid = cred.uid, .gid = cred.gid};
	return read_groups(fd, peer, err);
}

void peer_free(struct peer *peer)
{
	free(peer->groups);
	peer->groups = NULL;
}

static bool in_group(const struct peer *peer, gid_t gid)
{
	size_t i;

	if (peer->gid == gid)
		return true;
	for (i = 0; i < peer->num_groups; i++)
		if (peer->groups[i] == gid)
			return true;
	return false;
}

bool access_allowed(const struct config_access *access, const struct peer *peer)
{
	size_t i;

	if (access->anyone || peer->uid == 0 || peer->uid == geteuid())
		return true;
	for (i = 0; i < access->num_uids; i++)
		if (access->uids[i] == peer->uid)
			return true;
	for (i = 0; i < access->num_gids; i++)
		if (in_group(peer, access->gids[i]))
			return true;
	return false;
}
