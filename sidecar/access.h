/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who is at the other end of a connection, and what it may do.
 */
#ifndef ENGRAMD_ACCESS_H
#define ENGRAMD_ACCESS_H

#include <stdbool.h>
#include <sys/types.h>

#include "config.h"
#include "engram_error.h"

/* As the kernel noted when the peer connected. */
struct peer {
	pid_t pid;
	uid_t uid;
	gid_t gid;
	gid_t *groups; /* supplementary */
	size_t num_groups;
};

/* ENGRAM_ENOMEM, ENGRAM_ESYS: nothing is to be freed. */
enum engram_status peer_read(int fd, struct peer *peer,
			     struct engram_error *err);
void peer_free(struct peer *peer);

/* Is a peer on the list?  Root and engramd's own user always are. */
bool access_allowed(const struct config_access *access,
		    const struct peer *peer);

#endif
