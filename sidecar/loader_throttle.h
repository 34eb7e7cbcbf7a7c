/* SPDX-License-Identifier: Apache-2.0 */
/* A cap on what all loads of this process read, and their I/O priority. */
#ifndef ENGRAMD_LOADER_THROTTLE_H
#define ENGRAMD_LOADER_THROTTLE_H

#include <pthread.h>
#include <stdint.h>

#include "loader.h"

struct loader_throttle {
	pthread_mutex_t lock;
	uint64_t paid_ns; /* what was read is paid for up to then */
};

#define LOADER_THROTTLE_INIT                 \
	{                                    \
		PTHREAD_MUTEX_INITIALIZER, 0 \
	}

/* Read `bytes` at `rate` bytes a second: 0, they may be read now; else ask
 * again in so many nanoseconds.  No more than a tenth of a second's worth, or
 * one read, goes through at once.  Any thread; clock_ns() is `now`. */
uint64_t loader_throttle_take(struct loader_throttle *throttle, uint64_t rate,
			      uint64_t bytes, uint64_t now);
/* The one of this process. */
struct loader_throttle *loader_throttle(void);

/* Of the calling thread.  0 or an errno. */
int loader_priority_set(enum loader_priority priority);

#endif
