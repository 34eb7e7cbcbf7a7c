/* SPDX-License-Identifier: Apache-2.0 */
/*
 * flock as the mark of a living owner: the kernel drops it however the owner
 * ends.
 */
#ifndef ENGRAM_LOCK_H
#define ENGRAM_LOCK_H

#include <stdint.h>

/*
 * One try.  `kind` is LOCK_SH or LOCK_EX.  1: locked, 0: somebody else has
 * it, -1: errno.
 */
int lock_try(int fd, int kind);

/*
 * The exclusive lock, returns as above.  A process that is killed keeps its
 * locks until the kernel has unmapped its memory, seconds for a large table:
 * while `holder(fd)`, the pid that the file names (0: unknown), is such a
 * one, it is waited for, up to a minute; up to a second for one that is not
 * seen.
 */
int lock_exclusive(int fd, int32_t (*holder)(int fd));

#endif
