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

/* A load that was admitted and has not touched all of its memory yet. */
struct memory_promise {
	LIST_ENTRY(memory_promise) entry;
	uint64_t bytes;
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
 * Admit a load of `bytes`: the backing's room, MemAvailable and the limits
 * of the control group (version 2 and 1, all ancestors) must each hold it
 * beside what was promised before.  ENGRAM_ENOSPACE has both figures and
 * names the obstacle.  Any thread.
 */
enum engram_status memory_admit(struct memory_ledger *ledger,
				const struct engram_backing *backing,
				uint64_t bytes,
				const struct loader_progress *progress,
				struct memory_promise *promise,
				struct engram_error *err);
void memory_release(struct memory_ledger *ledger,
		    struct memory_promise *promise);

/* What the control group's limits still allow; UINT64_MAX without any.
 * `file` says which limit is the tightest. */
uint64_t memory_cgroup_room(const char *root, char *file, size_t file_size);
/* MemAvailable in bytes; UINT64_MAX if it can not be read. */
uint64_t memory_available(const char *root);

/* Would RLIMIT_MEMLOCK let this process lock `bytes` more?
 * ENGRAM_EMEMLOCK has both figures. */
enum engram_status memory_lockable(uint64_t bytes, struct engram_error *err);
/* Bytes that this process has locked, by /proc/self/status; 0 if unknown. */
uint64_t memory_locked(void);

#endif
