/* SPDX-License-Identifier: Apache-2.0 */
/* The descriptors that go with the answer to an attach. */
#ifndef ENGRAMD_PARCEL_H
#define ENGRAMD_PARCEL_H

#include "lease.h"

/*
 * What the message needs until it is sent: the descriptors stay open as long
 * as the generation is used, even if the lease ends before.  Writable ones are
 * opened for this message, and closed with it.
 */
struct parcel {
	struct generation *gen;
	uint32_t num_opened; /* after the first */
	int fds[];
};

/* ENGRAM_ENOMEM; for a writable lease also what
 * engram_segment_reopen_writable says. */
enum engram_status parcel_new(const struct lease *lease, int control_fd,
			      struct parcel **out, struct engram_error *err);
/* Takes a struct parcel. */
void parcel_free(void *arg);

#endif
