/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Will it fit?  Asked before a byte is read, so that a table too large for
 * the machine is a sentence with two numbers and not a killed process.
 */
#ifndef ENGRAMD_MEMORY_H
#define ENGRAMD_MEMORY_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "engram_error.h"
#include "engram_segment.h"
#include "loader.h"

/* What a load takes of its backing; with ENGRAM_NUMA_REPLICATE of all copies
 * together, an equal share for each node. */
struct memory_need {
	uint64_t bytes; /* whole pages */
	uint64_t files;
};

/* A load that was admitted and has not touched all of its memory yet. */
struct memory_promise {
	LIST_ENTRY(memory_promise) entry;
	uint64_t bytes;
	uint64_t nodes; /* of its copies, filled in this order; 0: of one */
	const struct loader_progress *progress; /* how much it has touched */
};

struct memory_ledger {
	pthread_mutex_t lock;
	LIST_HEAD(memory_promise_list, memory_promise) promises;
	const char *root; /* of /proc and /sys: "" */
};

enum engram_status memory_ledger_init(struct memory_ledger *ledger,
				      const char *root,
				      struct engram_error *err);
void memory_ledger_free(struct memory_ledger *ledger);

/*
 * Admit a load: the backing's room for bytes and for files, MemAvailable and
 * the limits of the control group (version 2 and 1, all ancestors) must each
 * hold it beside what was promised before; of huge pages that are set aside,
 * the pool and the group's limit of them.  ENGRAM_ENOSPACE has both figures and
 * names the obstacle.  Any thread.
 */
enum engram_status memory_admit(struct memory_ledger *ledger,
				const struct engram_backing *backing,
				const struct memory_need *need,
				const struct loader_progress *progress,
				struct memory_promise *promise,
				struct engram_error *err);
void memory_release(struct memory_ledger *ledger,
		    struct memory_promise *promise);

/* What the control group's limits still allow; UINT64_MAX without any.
 * `file` says which limit is the tightest. */
uint64_t memory_cgroup_room(const char *root, char *file, size_t file_size);
/* The same for huge pages of hugetlb of that size. */
uint64_t memory_hugetlb_room(const char *root, uint64_t page_bytes, char *file,
			     size_t file_size);
/* MemAvailable in bytes; UINT64_MAX if it can not be read. */
uint64_t memory_available(const char *root);

/* Would RLIMIT_MEMLOCK let this process lock `bytes` more?
 * ENGRAM_EMEMLOCK has both figures. */
enum engram_status memory_lockable(uint64_t bytes, struct engram_error *err);
/* Bytes that this process has locked, by /proc/self/status; 0 if unknown. */
uint64_t memory_locked(void);

#endif
