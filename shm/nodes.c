/* SPDX-License-Identifier: Apache-2.0 */
#include "nodes.h"

#include <errno.h>
#include <inttypes.h>
#include <linux/mempolicy.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "huge.h"

#define SMALL_PAGE UINT64_C(4096)

static int policy_mode(enum engram_numa numa)
{
	switch (numa) {
	case ENGRAM_NUMA_PREFER:
		return MPOL_PREFERRED;
	case ENGRAM_NUMA_BIND:
		return MPOL_BIND;
	case ENGRAM_NUMA_INTERLEAVE:
		return MPOL_INTERLEAVE;
	case ENGRAM_NUMA_LOCAL:
	case ENGRAM_NUMA_REPLICATE: /* one segment is on one node */
	default:
		return MPOL_DEFAULT;
	}
}

enum engram_status segment_set_nodes(const struct engram_segment_writer *w,
				     struct engram_error *err)
{
	const int mode = policy_mode(w->backing.numa);
	const unsigned long nodes = w->backing.nodes;
	enum engram_status status;

	/* The kernel reads one bit less than it is told of. */
	if (mode == MPOL_DEFAULT ||
	    !syscall(SYS_mbind, w->base, w->map_bytes, mode, &nodes,
		     sizeof(nodes) * 8 + 1, 0))
		return ENGRAM_OK;
	status = engram_error_sys(err, errno, "mbind to nodes %#" PRIx64,
				  w->backing.nodes);
	if (errno == EINVAL)
		engram_error_fix(err, "set memory.numa_nodes to nodes that "
				      "have memory and that engramd may use "
				      "(numactl --show)");
	else
		engram_error_fix(err, "allow mbind (docker: --cap-add "
				      "SYS_NICE), or set memory.numa to "
				      "\"local\"");
	return status;
}

uint64_t segment_turn_page(const struct engram_segment_writer *w,
			   uint64_t offset)
{
	const uint64_t turn = offset / SEGMENT_HUGE_PAGE;
	const uint64_t first = offset / SMALL_PAGE;
	uint64_t count;

	if (w->backing.numa != ENGRAM_NUMA_INTERLEAVE)
		return 0;
	count = (uint64_t)__builtin_popcountll(w->backing.nodes);
	return (turn % count + count - first % count) % count;
}

/* "7f00 bind:0 file=... N0=512 N1=3 kernelpagesize_kB=4": what a line of
 * numa_maps adds. */
static void add_line(char *line, uint64_t bytes[ENGRAM_NODES])
{
	uint64_t pages[ENGRAM_NODES] = {0}, kib = 0;
	char *word, *save, *end;
	unsigned long node;
	unsigned int i;

	for (word = strtok_r(line, " \n", &save); word;
	     word = strtok_r(NULL, " \n", &save)) {
		if (!strncmp(word, "kernelpagesize_kB=", 18)) {
			kib = strtoull(word + 18, NULL, 10);
			continue;
		}
		if (*word != 'N')
			continue;
		node = strtoul(word + 1, &end, 10);
		if (*end == '=' && node < ENGRAM_NODES)
			pages[node] = strtoull(end + 1, NULL, 10);
	}
	for (i = 0; i < ENGRAM_NODES; i++)
		bytes[i] += pages[i] * kib * 1024;
}

enum engram_status engram_segment_nodes(const struct engram_segment_writer *w,
					uint64_t bytes[ENGRAM_NODES],
					struct engram_error *err)
{
	const uint64_t begin = (uintptr_t)w->base, end = begin + w->map_bytes;
	FILE *f = fopen("/proc/self/numa_maps", "re");
	enum engram_status status;
	size_t size = 0;
	char *line = NULL;
	uint64_t at;

	memset(bytes, 0, ENGRAM_NODES * sizeof(*bytes));
	if (!f) {
		status = engram_error_sys(err, errno, "/proc/self/numa_maps");
		engram_error_fix(err, "mount /proc; the kernel needs "
				      "CONFIG_NUMA");
		return status;
	}
	while (getline(&line, &size, f) > 0) {
		at = strtoull(line, NULL, 16);
		if (at >= begin && at < end)
			add_line(line, bytes);
	}
	free(line);
	fclose(f);
	return ENGRAM_OK;
}
