/* SPDX-License-Identifier: Apache-2.0 */
/* A made-up /proc and /sys. */
#ifndef FAKE_ROOT_H
#define FAKE_ROOT_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char fake_root[] = "/tmp/engram-test-root-XXXXXX";

/* 0 or -1. */
static inline int fake_root_make(void)
{
	memcpy(fake_root + sizeof(fake_root) - 7, "XXXXXX", 6);
	return mkdtemp(fake_root) ? 0 : -1;
}

static inline int fake_root_remove(void)
{
	char command[128];

	snprintf(command, sizeof(command), "rm -rf '%s'", fake_root);
	return system(command);
}

/* A file in it, with all of its directories. */
static inline void fake_root_put(const char *name, const char *text)
{
	char path[512], *slash;
	FILE *file;

	snprintf(path, sizeof(path), "%s/%s", fake_root, name);
	for (slash = strchr(path + 1, '/'); slash;
	     slash = strchr(slash + 1, '/')) {
		*slash = '\0';
		mkdir(path, 0700);
		*slash = '/';
	}
	file = fopen(path, "w");
	if (!file || fputs(text, file) < 0 || fclose(file)) {
		perror(path);
		exit(1);
	}
}

#endif
