/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The service manager's store of file descriptors, in which memfds outlive
 * this process: see sd_pid_notify_with_fds(3), FileDescriptorStoreMax= in
 * systemd.service(5), and shm/engram_keeper.h.  Without it all works, but
 * nothing is left to the next engramd; that is said once.
 */
#ifndef ENGRAMD_FD_STORE_H
#define ENGRAMD_FD_STORE_H

#include <stdbool.h>

#include "engram_keeper.h"
#include "engram_segment.h"

struct fd_store {
	struct engram_keeper *keeper; /* NULL: the backing needs none */
	bool there;		      /* there is a service manager */
	unsigned long max;	      /* descriptors; 0: it does not say */
	bool inherited;		      /* it has given some back */
	/* Any thread. */
	_Atomic bool complained, deaf;
};

/*
 * Take back what a former engramd of the instance has left, and have the
 * backing keep there what it makes.  What is not the instance's, or with
 * another backing, is removed from the store.  ENGRAM_ENOMEM.
 */
enum engram_status fd_store_open(struct fd_store *store, const char *instance,
				 struct engram_backing *backing,
				 struct engram_error *err);
/* What is kept stays. */
void fd_store_close(struct fd_store *store);

/* May tables be left there when the service stops?  ENGRAM_EUNSUPPORTED. */
enum engram_status fd_store_check(const struct fd_store *store,
				  struct engram_error *err);

#endif
