/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>

#include "lock.h"

/* One who asks whether there is an owner holds the lock for an instant; such
 * a one must not pass for an owner. */
#define SHORT_TRIES 5
#define SHORT_NS    2000000

#define LEAVING_NS  20000000
#define LEAVING_MAX 3000 /* a minute */
#define UNSEEN_MAX  50	 /* a second */

#define PF_EXITING 0x4 /* include/linux/sched.h */

int lock_try(int fd, int kind)
{
	int r;

	do
		r = flock(fd, kind | LOCK_NB);
	while (r && errno == EINTR);
	if (!r)
		return 1;
	return errno == EWOULDBLOCK ? 0 : -1;
}

/*
 * How often to try again for a holder.  One that is being torn down lets go
 * soon.  One that is not seen is of another PID namespace, or has been reaped
 * while the kernel still looks at its memory (DAMON, a reader of its smaps):
 * the mapping of the locked file goes with that.
 */
static int patience(int32_t pid)
{
	unsigned int flags = 0;
	char file[32], line[512];
	const char *name_end;
	FILE *f;

	if (pid <= 0)
		return 0;
	snprintf(file, sizeof(file), "/proc/%d/stat", (int)pid);
	f = fopen(file, "re");
	if (!f)
		return UNSEEN_MAX;
	if (!fgets(line, sizeof(line), f))
		line[0] = '\0';
	fclose(f);
	/* pid (name) state ppid pgrp session tty tpgid flags */
	name_end = strrchr(line, ')');
	if (!name_end ||
	    sscanf(name_end + 1, " %*c %*d %*d %*d %*d %*d %u", &flags) != 1)
		return 0;
	return flags & PF_EXITING ? LEAVING_MAX : 0;
}

static int wait_and_try(int fd, long ns)
{
	const struct timespec wait = {.tv_nsec = ns};

	nanosleep(&wait, NULL);
	return lock_try(fd, LOCK_EX);
}

int lock_exclusive(int fd, int32_t (*holder)(int fd))
{
	int locked = lock_try(fd, LOCK_EX), i;

	for (i = 1; !locked && i < SHORT_TRIES; i++)
		locked = wait_and_try(fd, SHORT_NS);
	for (i = 0; !locked && i < patience(holder(fd)); i++)
		locked = wait_and_try(fd, LEAVING_NS);
	/* It may have gone between the last try and the last look. */
	return locked ? locked : lock_try(fd, LOCK_EX);
}
