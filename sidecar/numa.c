/* SPDX-License-Identifier: Apache-2.0 */
#include "numa.h"

#include <inttypes.h>
#include <limits.h>
#include <linux/mempolicy.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "memory_files.h"

#define NODE_DIR "/sys/devices/system/node"

/* Every number of a list such as "0-3,8", the file's only line. */
static bool read_list(const char *path,
		      void (*add)(void *ctx, unsigned long number), void *ctx)
{
	char line[4096], *at, *end;
	unsigned long from, to;
	FILE *f = fopen(path, "re");
	bool good;

	if (!f)
		return false;
	good = fgets(line, sizeof(line), f) != NULL;
	fclose(f);
	for (at = line; good && *at >= '0' && *at <= '9'; at = end + 1) {
		from = to = strtoul(at, &end, 10);
		if (*end == '-')
			to = strtoul(end + 1, &end, 10);
		for (; from <= to && from < CPU_SETSIZE; from++)
			add(ctx, from);
		if (*end != ',')
			break;
	}
	return good;
}

static void add_node(void *ctx, unsigned long number)
{
	if (number < ENGRAM_NODES)
		*(uint64_t *)ctx |= UINT64_C(1) << number;
}

static void add_core(void *ctx, unsigned long number)
{
	if (number < CPU_SETSIZE)
		CPU_SET(number, (cpu_set_t *)ctx);
}

uint64_t numa_nodes(const char *root)
{
	uint64_t memory = 0, cores = 0;
	char path[512];

	snprintf(path, sizeof(path), "%s" NODE_DIR "/has_memory", root);
	if (!read_list(path, add_node, &memory))
		return 1;
	snprintf(path, sizeof(path), "%s" NODE_DIR "/has_cpu", root);
	if (!read_list(path, add_node, &cores))
		return 1;
	return memory & cores ? memory & cores : 1;
}

bool numa_cores(const char *root, uint64_t nodes, cpu_set_t *out)
{
	cpu_set_t near, allowed;
	char path[512];
	unsigned int i;

	CPU_ZERO(&near);
	for (i = 0; i < ENGRAM_NODES; i++) {
		if (!(nodes >> i & 1))
			continue;
		snprintf(path, sizeof(path), "%s" NODE_DIR "/node%u/cpulist",
			 root, i);
		(void)read_list(path, add_core, &near);
	}
	if (sched_getaffinity(0, sizeof(allowed), &allowed))
		return false;
	CPU_AND(out, &near, &allowed);
	return CPU_COUNT(out) > 0;
}

const char *numa_text(uint64_t nodes, char *out, size_t size)
{
	unsigned int i, to;
	size_t len = 0;

	out[0] = '\0';
	for (i = 0; i < ENGRAM_NODES && len < size; i = to + 1) {
		to = i;
		if (!(nodes >> i & 1))
			continue;
		while (to + 1 < ENGRAM_NODES && nodes >> (to + 1) & 1)
			to++;
		len += (size_t)snprintf(out + len, size - len,
					to == i ? "%s%u" : "%s%u-%u",
					len ? "," : "", i, to);
	}
	return out;
}

/* Has somebody decided already, by numactl or the unit? */
static bool has_policy(void)
{
	int mode = MPOL_DEFAULT;

	return syscall(SYS_get_mempolicy, &mode, NULL, 0, NULL, 0) ||
	       mode != MPOL_DEFAULT;
}

static void resolve_local(struct engram_backing *backing, uint64_t all)
{
	unsigned int core, node;

	if (!(all & (all - 1)) || has_policy() || getcpu(&core, &node) ||
	    !(all >> node & 1))
		return;
	backing->numa = ENGRAM_NUMA_PREFER;
	backing->nodes = UINT64_C(1) << node;
}

/* One copy needs no name of its own. */
static void resolve_single(struct engram_backing *backing, uint64_t all)
{
	if (backing->numa != ENGRAM_NUMA_REPLICATE ||
	    backing->nodes & (backing->nodes - 1))
		return;
	backing->numa = ENGRAM_NUMA_BIND;
	if (backing->nodes != all)
		return;
	backing->numa = ENGRAM_NUMA_LOCAL;
	backing->nodes = 0;
}

enum engram_status numa_resolve(const char *root,
				struct engram_backing *backing,
				struct engram_error *err)
{
	const uint64_t all = numa_nodes(root);
	const uint64_t missing = backing->nodes & ~all;
	char wanted[256], there[256];

	if (backing->numa != ENGRAM_NUMA_LOCAL && !backing->nodes)
		backing->nodes = all;
	if (!missing) {
		resolve_single(backing, all);
		if (backing->numa == ENGRAM_NUMA_LOCAL)
			resolve_local(backing, all);
		return ENGRAM_OK;
	}
	engram_error_set(err, ENGRAM_EINVAL,
			 "node %s of memory.numa_nodes is not there",
			 numa_text(missing, wanted, sizeof(wanted)));
	engram_error_fix(err, "nodes with memory and cores are %.200s",
			 numa_text(all, there, sizeof(there)));
	engram_error_path(err, "memory.numa_nodes");
	return ENGRAM_EINVAL;
}

struct engram_backing numa_backing_of(const struct engram_backing *backing,
				      uint32_t replica)
{
	struct engram_backing one = *backing;

	if (replica) {
		one.numa = ENGRAM_NUMA_BIND;
		one.nodes = UINT64_C(1) << (replica - 1);
	}
	return one;
}

/* "10 21 31": to each node that is there, in order. */
static bool read_distances(const char *root, unsigned int node,
			   unsigned long out[ENGRAM_NODES])
{
	char path[512], line[1024], *at = line, *end;
	unsigned int to;
	FILE *f;
	bool good;

	snprintf(path, sizeof(path), "%s" NODE_DIR "/node%u/distance", root,
		 node);
	f = fopen(path, "re");
	if (!f)
		return false;
	good = fgets(line, sizeof(line), f) != NULL;
	fclose(f);
	for (to = 0; good && to < ENGRAM_NODES; to++, at = end) {
		out[to] = strtoul(at, &end, 10);
		if (end == at)
			break;
	}
	for (; to < ENGRAM_NODES; to++)
		out[to] = ULONG_MAX;
	return good;
}

/* The n-th node that is online, which the n-th distance is to. */
static unsigned int place_of(uint64_t online, unsigned int node)
{
	return (unsigned int)__builtin_popcountll(online &
						  ((UINT64_C(1) << node) - 1));
}

unsigned int numa_nearest(const char *root, uint64_t nodes, unsigned int node)
{
	unsigned int best = (unsigned int)__builtin_ctzll(nodes), i;
	unsigned long distance[ENGRAM_NODES];
	uint64_t online = 0;
	char path[512];

	if (node < ENGRAM_NODES && nodes >> node & 1)
		return node;
	snprintf(path, sizeof(path), "%s" NODE_DIR "/online", root);
	if (node >= ENGRAM_NODES || !read_list(path, add_node, &online) ||
	    !read_distances(root, node, distance))
		return best;
	for (i = 0; i < ENGRAM_NODES; i++)
		if (nodes >> i & 1 && distance[place_of(online, i)] <
					      distance[place_of(online, best)])
			best = i;
	return best;
}

uint64_t numa_of_process(const char *root, pid_t pid)
{
	cpu_set_t allowed, near;
	uint64_t nodes = 0;
	char path[512];
	unsigned int i;

	/* 0 would be ourselves: the process is of another PID namespace. */
	if (pid <= 0 || sched_getaffinity(pid, sizeof(allowed), &allowed))
		return 0;
	for (i = 0; i < ENGRAM_NODES; i++) {
		CPU_ZERO(&near);
		snprintf(path, sizeof(path), "%s" NODE_DIR "/node%u/cpulist",
			 root, i);
		if (!read_list(path, add_core, &near))
			continue;
		CPU_AND(&near, &near, &allowed);
		if (CPU_COUNT(&near))
			nodes |= UINT64_C(1) << i;
	}
	return nodes;
}

void numa_go_near(const cpu_set_t *cores, cpu_set_t *before)
{
	if (!cores)
		return;
	if (pthread_getaffinity_np(pthread_self(), sizeof(*before), before) ||
	    pthread_setaffinity_np(pthread_self(), sizeof(*before), cores))
		*before = *cores;
}

void numa_go_back(const cpu_set_t *cores, const cpu_set_t *before)
{
	if (cores)
		(void)pthread_setaffinity_np(pthread_self(), sizeof(*before),
					     before);
}

/* "Node 0 MemFree:   123 kB" */
static uint64_t node_figure(const char *root, unsigned int node,
			    const char *name)
{
	char path[512], key[64];
	uint64_t kib;

	snprintf(path, sizeof(path), "%s" NODE_DIR "/node%u/meminfo", root,
		 node);
	snprintf(key, sizeof(key), "Node %u %s:", node, name);
	return memory_read_key(path, key, 10, &kib) ? kib * 1024 : 0;
}

static uint64_t node_pool(const char *root, unsigned int node,
			  uint64_t page_bytes)
{
	char path[512];
	uint64_t pages;

	snprintf(path, sizeof(path),
		 "%s" NODE_DIR "/node%u/hugepages/hugepages-%" PRIu64
		 "kB/free_hugepages",
		 root, node, page_bytes >> 10);
	return memory_read_key(path, "", 10, &pages) ? pages * page_bytes : 0;
}

uint64_t numa_room(const char *root, uint64_t nodes, uint64_t page_bytes)
{
	uint64_t room = 0, total = 0;
	unsigned int i;

	for (i = 0; i < ENGRAM_NODES; i++) {
		if (!(nodes >> i & 1))
			continue;
		total += node_figure(root, i, "MemTotal");
		if (page_bytes)
			room += node_pool(root, i, page_bytes);
		else
			room += node_figure(root, i, "MemFree") +
				node_figure(root, i, "Active(file)") +
				node_figure(root, i, "Inactive(file)");
	}
	return total ? room : UINT64_MAX;
}
