/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGRAMD_FUTEX_H
#define ENGRAMD_FUTEX_H

#include <linux/futex.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Sleep while *word is `value`, at most `ns` (0: no limit).  May return
 * early. */
static inline void futex_wait(_Atomic uint32_t *word, uint32_t value,
			      uint64_t ns)
{
	struct timespec timeout = {(time_t)(ns / 1000000000),
				   (long)(ns % 1000000000)};

	syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value,
		ns ? &timeout : NULL, NULL, 0);
}

static inline void futex_wake(_Atomic uint32_t *word, int count)
{
	syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
}

#endif
