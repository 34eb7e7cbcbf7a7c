/* SPDX-License-Identifier: Apache-2.0 */
#include "loader_throttle.h"

#include <errno.h>
#include <linux/ioprio.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SECOND_NS 1000000000.0
#define BURST_NS  UINT64_C(100000000)
#define LOWEST	  7 /* of the class "best effort" */

struct loader_throttle *loader_throttle(void)
{
	static struct loader_throttle throttle = LOADER_THROTTLE_INIT;

	return &throttle;
}

uint64_t loader_throttle_take(struct loader_throttle *throttle, uint64_t rate,
			      uint64_t bytes, uint64_t now)
{
	uint64_t wait = 0;

	pthread_mutex_lock(&throttle->lock);
	/* What was not used of an idle time is lost, but for the burst. */
	if (throttle->paid_ns < now)
		throttle->paid_ns = now;
	if (throttle->paid_ns > now + BURST_NS)
		wait = throttle->paid_ns - now - BURST_NS;
	else
		throttle->paid_ns += 1 + (uint64_t)((double)bytes * SECOND_NS /
						    (double)rate);
	pthread_mutex_unlock(&throttle->lock);
	return wait;
}

int loader_priority_set(enum loader_priority priority)
{
	int value;

	switch (priority) {
	case LOADER_PRIORITY_LOW:
		value = IOPRIO_PRIO_VALUE(IOPRIO_CLASS_BE, LOWEST);
		break;
	case LOADER_PRIORITY_IDLE:
		value = IOPRIO_PRIO_VALUE(IOPRIO_CLASS_IDLE, 0);
		break;
	case LOADER_PRIORITY_NORMAL:
	default:
		return 0;
	}
	return syscall(SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, value) ? errno
								     : 0;
}
