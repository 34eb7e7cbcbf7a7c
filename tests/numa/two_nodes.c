/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For LD_PRELOAD: a machine with one node of memory looks as if it had two,
 * each with half of the cores.  Pages are all where they are; which are where
 * can not be told (there is no numa_maps), and what binds them succeeds.  What
 * is really on which node is for the virtual machine of test_two_nodes.py.
 *
 * TWO_NODES_FREE=N: so many bytes are free on node 1.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NODES "/sys/devices/system/node/"

static FILE *text(const char *format, long a, long b)
{
	char line[256];
	FILE *f = tmpfile();

	if (!f)
		return NULL;
	snprintf(line, sizeof(line), format, a, b);
	fputs(line, f);
	rewind(f);
	return f;
}

static FILE *meminfo(long node)
{
	const char *free_bytes = getenv("TWO_NODES_FREE");
	long kib = node == 1 && free_bytes ? atol(free_bytes) / 1024 : 1L << 30;

	return text(node ? "Node 1 MemTotal: %ld kB\nNode 1 MemFree: %ld kB\n"
			 : "Node 0 MemTotal: %ld kB\nNode 0 MemFree: %ld kB\n",
		    1L << 30, kib);
}

static FILE *of_node(long node, const char *file)
{
	const long cores = sysconf(_SC_NPROCESSORS_CONF);
	const long half = cores > 1 ? cores / 2 : 1;

	if (node > 1) {
		errno = ENOENT;
		return NULL;
	}
	if (!strcmp(file, "cpulist"))
		return node ? text("%ld-%ld\n", half, cores - 1)
			    : text("%ld-%ld\n", 0, half - 1);
	if (!strcmp(file, "distance"))
		return node ? text("%ld %ld\n", 21, 10)
			    : text("%ld %ld\n", 10, 21);
	return meminfo(node);
}

FILE *fopen(const char *path, const char *mode)
{
	static FILE *(*next)(const char *, const char *);
	char *end;
	long node;

	if (!next)
		*(void **)&next = dlsym(RTLD_NEXT, "fopen");
	if (!strcmp(path, "/proc/self/numa_maps")) {
		errno = ENOENT;
		return NULL;
	}
	if (strncmp(path, NODES, sizeof(NODES) - 1))
		return next(path, mode);
	path += sizeof(NODES) - 1;
	if (strncmp(path, "node", 4))
		return text("%ld-%ld\n", 0, 1);
	node = strtol(path + 4, &end, 10);
	return of_node(node, end + 1);
}

long syscall(long number, ...)
{
	static long (*next)(long, ...);
	long a[6];
	va_list args;
	int i;

	if (!next)
		*(void **)&next = dlsym(RTLD_NEXT, "syscall");
	va_start(args, number);
	for (i = 0; i < 6; i++)
		a[i] = va_arg(args, long);
	va_end(args);
	if (number == SYS_mbind)
		return 0;
	return next(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
