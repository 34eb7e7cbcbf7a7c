/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <linux/capability.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "memory_files.h"
#include "numa.h"

/* The largest of an architecture that is not huge. */
#define SMALL_PAGE (UINT64_C(64) << 10)

enum engram_status memory_ledger_init(struct memory_ledger *ledger,
				      const char *root,
				      struct engram_error *err)
{
	int rc = pthread_mutex_init(&ledger->lock, NULL);

	if (rc)
		return engram_error_sys(err, rc, "memory ledger: mutex");
	LIST_INIT(&ledger->promises);
	ledger->root = root;
	return ENGRAM_OK;
}

void memory_ledger_free(struct memory_ledger *ledger)
{
	pthread_mutex_destroy(&ledger->lock);
}

uint64_t memory_available(const char *root)
{
	char file[512];
	uint64_t kib;

	snprintf(file, sizeof(file), "%s/proc/meminfo", root);
	return memory_read_key(file, "MemAvailable:", 10, &kib) ? kib * 1024
								: UINT64_MAX;
}

static uint64_t outstanding(const struct memory_ledger *ledger)
{
	const struct memory_promise *promise;
	uint64_t bytes = 0, done;

	LIST_FOREACH(promise, &ledger->promises, entry)
	{
		done = atomic_load(&promise->progress->bytes_touched);
		bytes += done < promise->bytes ? promise->bytes - done : 0;
	}
	return bytes;
}

static uint32_t count_of(uint64_t nodes)
{
	return (uint32_t)__builtin_popcountll(nodes);
}

/* The same of what will be on one node, of which every table has a copy. */
static uint64_t outstanding_on(const struct memory_ledger *ledger,
			       unsigned int node)
{
	const struct memory_promise *promise;
	uint64_t bytes = 0, done, copy, before;

	LIST_FOREACH(promise, &ledger->promises, entry)
	{
		if (!(promise->nodes >> node & 1))
			continue;
		copy = promise->bytes / count_of(promise->nodes);
		before = copy *
			 count_of(promise->nodes & ((UINT64_C(1) << node) - 1));
		done = atomic_load(&promise->progress->bytes_touched);
		done = done > before ? done - before : 0;
		bytes += done < copy ? copy - done : 0;
	}
	return bytes;
}

static enum engram_status check(const char *what, const char *fix,
				uint64_t bytes, uint64_t promised,
				uint64_t room, struct engram_error *err)
{
	uint64_t available = room > promised ? room - promised : 0;

	if (room == UINT64_MAX || bytes <= available)
		return ENGRAM_OK;
	engram_error_set(err, ENGRAM_ENOSPACE,
			 "%" PRIu64 " bytes are needed, and %s has %" PRIu64
			 " available",
			 bytes, what, available);
	engram_error_fix(err, "%s", fix);
	engram_error_figures(err, bytes, available);
	return ENGRAM_ENOSPACE;
}

static enum engram_status check_files(const struct engram_backing *backing,
				      uint64_t files, struct engram_error *err)
{
	uint64_t room = engram_backing_files(backing);

	if (files <= room)
		return ENGRAM_OK;
	engram_error_set(err, ENGRAM_ENOSPACE,
			 "%" PRIu64
			 " files are needed, and %s has room for %" PRIu64,
			 files, backing->dir, room);
	engram_error_fix(err,
			 "remount it with more: mount -o "
			 "remount,nr_inodes=... %s",
			 backing->dir);
	engram_error_figures(err, files, room);
	return ENGRAM_ENOSPACE;
}

/* The file system, or the pool behind a memfd of huge pages. */
static enum engram_status check_backing(const struct engram_backing *backing,
					const struct memory_need *need,
					uint64_t promised,
					struct engram_error *err)
{
	const bool memfd = backing->kind == ENGRAM_BACKING_MEMFD;
	enum engram_status status;
	uint64_t room;

	if (memfd && !backing->memfd_page)
		return ENGRAM_OK;
	status = engram_backing_room(backing, &room, err);
	if (!status)
		status = check(memfd ? "the pool of huge pages" : backing->dir,
			       engram_backing_page(backing) > SMALL_PAGE
				       ? "unload another table, or set aside "
					 "more huge pages "
					 "(/sys/kernel/mm/hugepages/*/"
					 "nr_hugepages)"
				       : "unload another table, or make the "
					 "file system larger (docker: "
					 "--shm-size)",
			       need->bytes, promised, room, err);
	return status ? status : check_files(backing, need->files, err);
}

static enum engram_status check_cgroup(uint64_t room, const char *file,
				       uint64_t bytes, uint64_t promised,
				       struct engram_error *err)
{
	char what[600];

	snprintf(what, sizeof(what), "the control group (%s)", file);
	return check(what,
		     "raise the memory limit of the container or the unit",
		     bytes, promised, room, err);
}

static enum engram_status check_bound(const struct memory_ledger *ledger,
				      const struct engram_backing *backing,
				      uint64_t mask, const char *fix,
				      uint64_t bytes, uint64_t promised,
				      struct engram_error *err)
{
	const uint64_t page = engram_backing_page(backing);
	char nodes[200], what[256];

	snprintf(what, sizeof(what), "node %s",
		 numa_text(mask, nodes, sizeof(nodes)));
	return check(
		what, fix, bytes, promised,
		numa_room(ledger->root, mask, page > SMALL_PAGE ? page : 0),
		err);
}

/* What is bound to nodes can not go elsewhere. */
static enum engram_status check_nodes(const struct memory_ledger *ledger,
				      const struct engram_backing *backing,
				      uint64_t bytes, uint64_t promised,
				      struct engram_error *err)
{
	enum engram_status status = ENGRAM_OK;
	unsigned int node;

	if (backing->numa == ENGRAM_NUMA_BIND)
		return check_bound(ledger, backing, backing->nodes,
				   "free memory there, or set "
				   "memory.numa_nodes to more nodes",
				   bytes, promised, err);
	if (backing->numa != ENGRAM_NUMA_REPLICATE)
		return ENGRAM_OK;
	for (node = 0; node < ENGRAM_NODES && !status; node++)
		if (backing->nodes >> node & 1)
			status = check_bound(
				ledger, backing, UINT64_C(1) << node,
				"free memory there, or leave the node out of "
				"memory.numa_nodes, or set memory.numa to "
				"\"interleave\"",
				bytes / count_of(backing->nodes),
				outstanding_on(ledger, node), err);
	return status;
}

static enum engram_status check_all(const struct memory_ledger *ledger,
				    const struct engram_backing *backing,
				    const struct memory_need *need,
				    struct engram_error *err)
{
	const uint64_t page = engram_backing_page(backing);
	uint64_t promised = outstanding(ledger), room;
	enum engram_status status;
	char file[512];

	status = check_backing(backing, need, promised, err);
	if (!status)
		status = check_nodes(ledger, backing, need->bytes, promised,
				     err);
	if (status)
		return status;
	/* Huge pages were set aside before; no other limit counts them. */
	if (page > SMALL_PAGE) {
		room = memory_hugetlb_room(ledger->root, page, file,
					   sizeof(file));
		return check_cgroup(room, file, need->bytes, promised, err);
	}
	status = check("the host (MemAvailable)",
		       "free memory on the host, or load fewer layers",
		       need->bytes, promised, memory_available(ledger->root),
		       err);
	if (status)
		return status;
	room = memory_cgroup_room(ledger->root, file, sizeof(file));
	return check_cgroup(room, file, need->bytes, promised, err);
}

enum engram_status memory_admit(struct memory_ledger *ledger,
				const struct engram_backing *backing,
				const struct memory_need *need,
				const struct loader_progress *progress,
				struct memory_promise *promise,
				struct engram_error *err)
{
	enum engram_status status;

	promise->bytes = need->bytes;
	promise->nodes =
		backing->numa == ENGRAM_NUMA_REPLICATE ? backing->nodes : 0;
	promise->progress = progress;
	pthread_mutex_lock(&ledger->lock);
	status = check_all(ledger, backing, need, err);
	if (!status)
		LIST_INSERT_HEAD(&ledger->promises, promise, entry);
	pthread_mutex_unlock(&ledger->lock);
	return status;
}

void memory_release(struct memory_ledger *ledger,
		    struct memory_promise *promise)
{
	pthread_mutex_lock(&ledger->lock);
	LIST_REMOVE(promise, entry);
	pthread_mutex_unlock(&ledger->lock);
}

uint64_t memory_locked(void)
{
	uint64_t kib;

	return memory_read_key("/proc/self/status", "VmLck:", 10, &kib)
		       ? kib * 1024
		       : 0;
}

enum engram_status memory_lockable(uint64_t bytes, struct engram_error *err)
{
	struct rlimit limit;
	uint64_t caps = 0, locked, room;

	if (getrlimit(RLIMIT_MEMLOCK, &limit))
		return engram_error_sys(err, errno, "getrlimit(MEMLOCK)");
	if (limit.rlim_cur == RLIM_INFINITY)
		return ENGRAM_OK;
	/* Who may lock without limit is not bound by it. */
	if (memory_read_key("/proc/self/status", "CapEff:", 16, &caps) &&
	    caps & UINT64_C(1) << CAP_IPC_LOCK)
		return ENGRAM_OK;
	locked = memory_locked();
	room = limit.rlim_cur > locked ? limit.rlim_cur - locked : 0;
	if (bytes <= room)
		return ENGRAM_OK;
	engram_error_set(err, ENGRAM_EMEMLOCK,
			 "%" PRIu64 " bytes are to be locked, and "
			 "RLIMIT_MEMLOCK leaves %" PRIu64,
			 bytes, room);
	engram_error_fix(err, "set LimitMEMLOCK=infinity in the unit (docker: "
			      "--ulimit memlock=-1), or memory.lock to "
			      "\"try\"");
	engram_error_figures(err, bytes, room);
	return ENGRAM_EMEMLOCK;
}
