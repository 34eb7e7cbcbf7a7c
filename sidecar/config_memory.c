/* SPDX-License-Identifier: Apache-2.0 */
/* Where tables live. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config_parts.h"

#define HUGE_PAGE_MIN (UINT64_C(64) << 10)
#define HUGE_PAGE_MAX (UINT64_C(16) << 30)

static const char *const backing_names[] = {"shm", "hugetlbfs", "memfd", NULL};
static const enum engram_backing_kind backing_kinds[] = {
	ENGRAM_BACKING_SHM, ENGRAM_BACKING_HUGETLBFS, ENGRAM_BACKING_MEMFD};
static const char *const huge_names[] = {"try", "require", "off", NULL};
static const char *const lock_names[] = {"try", "require", "off", NULL};
static const char *const adopt_names[] = {"verify", "background", "trust",
					  "off", NULL};
/* In the order of enum engram_numa. */
static const char *const numa_names[] = {"local", "bind", "interleave",
					 "replicate", NULL};

/* Where files in memory are: any tmpfs, or a mount of hugetlbfs. */
static void read_backing_path(struct json_view *v,
			      struct engram_backing *backing)
{
	char *path = config_path(v, "path", NULL);

	if (v->failed)
		goto out;
	if (path && backing->kind == ENGRAM_BACKING_MEMFD)
		config_fault(v, "path",
			     "remove it, or set \"backing\" to \"shm\" or "
			     "\"hugetlbfs\"",
			     "a memfd has no path");
	else if (path && strlen(path) >= sizeof(backing->dir))
		config_fault(v, "path", "mount it on a shorter path",
			     "is %zu bytes long, at most %zu are allowed",
			     strlen(path), sizeof(backing->dir) - 1);
	else if (path)
		memcpy(backing->dir, path, strlen(path) + 1);
	else if (backing->kind == ENGRAM_BACKING_HUGETLBFS)
		json_view_require(v, "path",
				  "the directory where hugetlbfs is mounted");
	else if (backing->kind == ENGRAM_BACKING_SHM)
		snprintf(backing->dir, sizeof(backing->dir), "/dev/shm");
out:
	free(path);
}

/* Pages of hugetlb under a memfd. */
static uint64_t read_huge_page(struct json_view *v,
			       const struct engram_backing *backing)
{
	uint64_t bytes = json_view_bytes(v, "huge_page", HUGE_PAGE_MIN,
					 HUGE_PAGE_MAX, 0);

	if (v->failed || !bytes)
		return 0;
	if (backing->kind != ENGRAM_BACKING_MEMFD)
		config_fault(v, "huge_page",
			     "remove it, or set \"backing\" to \"memfd\"; "
			     "hugetlbfs has the pages of its mount (pagesize=)",
			     "is for the backing \"memfd\" only");
	else if (bytes & (bytes - 1))
		config_fault(v, "huge_page",
			     "write a size that is in "
			     "/sys/kernel/mm/hugepages, as \"2MiB\"",
			     "%llu is no power of two",
			     (unsigned long long)bytes);
	return bytes;
}

/* Node numbers, as a mask. */
static uint64_t read_nodes(struct json_view *v)
{
	json_t *array = json_view_array(v, "numa_nodes", 1, ENGRAM_NODES);
	uint64_t nodes = 0;
	json_t *item;
	size_t i;

	json_array_foreach(array, i, item)
	{
		json_int_t node = json_integer_value(item);

		if (!json_is_integer(item) || node < 0 || node >= ENGRAM_NODES)
			config_fault(v, "numa_nodes",
				     "give the numbers of nodes, from 0, as "
				     "numactl --hardware shows them",
				     "item %zu is no number of a node", i);
		else if (nodes >> node & 1)
			config_fault(v, "numa_nodes", "name it once",
				     "node %d is named twice", (int)node);
		else
			nodes |= UINT64_C(1) << node;
	}
	return nodes;
}

static void read_numa(struct json_view *v, struct engram_backing *backing)
{
	backing->numa = (enum engram_numa)json_view_enum(v, "numa", numa_names,
							 ENGRAM_NUMA_LOCAL);
	backing->nodes = read_nodes(v);
	if (backing->nodes && backing->numa == ENGRAM_NUMA_LOCAL)
		config_fault(v, "numa_nodes",
			     "set \"numa\" to \"bind\", \"interleave\" or "
			     "\"replicate\", or remove them",
			     "are not for \"local\" memory");
}

void config_read_memory(struct json_view *top, struct config *config)
{
	struct engram_backing *backing = &config->backing;
	struct json_view v;

	backing->kind = ENGRAM_BACKING_SHM;
	config->lock = MEMORY_LOCK_TRY;
	if (!config_section_begin(top, &v, "memory")) {
		snprintf(backing->dir, sizeof(backing->dir), "/dev/shm");
		return;
	}
	backing->kind =
		backing_kinds[json_view_enum(&v, "backing", backing_names, 0)];
	read_backing_path(&v, backing);
	backing->huge = (enum engram_huge)json_view_enum(
		&v, "huge_pages", huge_names, ENGRAM_HUGE_TRY);
	backing->memfd_page = read_huge_page(&v, backing);
	read_numa(&v, backing);
	config->lock = (enum memory_lock)json_view_enum(&v, "lock", lock_names,
							MEMORY_LOCK_TRY);
	config->adopt = (enum adopt_mode)json_view_enum(
		&v, "adopt", adopt_names, ADOPT_VERIFY);
	config_section_end(top, &v);
}
