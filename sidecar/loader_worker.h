/* SPDX-License-Identifier: Apache-2.0 */
/* What the threads of one load share, and what each of them does. */
#ifndef ENGRAMD_LOADER_WORKER_H
#define ENGRAMD_LOADER_WORKER_H

#include <pthread.h>

#include "loader_memory.h"
#include "loader_plan.h"
#include "loader_queue.h"
#include "loader_tune.h"
#include "reader.h"
#include "sources.h"

/* A layer that is being filled. */
struct loader_target {
	struct loader_plan plan;
	int32_t layer_id;
	const struct engram_segment_header *header;
	void *base; /* of the segment */
	uint64_t *checksums;
	const uint64_t *known; /* or NULL */
	struct loader_memory memory;
	struct loader_layer_progress *progress;
};

struct loader_shared {
	struct loader_target *targets;
	uint32_t num_targets;
	struct loader_queue queue;
	struct sources sources;
	struct loader_progress *progress;
	enum loader_engine wish;   /* as configured */
	enum loader_engine engine; /* that workers try first */
	uint64_t bytes_per_second; /* 0: no limit */
	enum loader_priority priority;
	const cpu_set_t *cores; /* NULL: any */
	uint32_t align;
	uint32_t most_depth;  /* blocks in flight of a worker, at most */
	uint64_t arena_bytes; /* that it reads into */

	_Atomic uint64_t setting;    /* loader_setting_pack */
	_Atomic uint64_t bytes_read; /* that have arrived */
	_Atomic bool stop;
	pthread_mutex_t lock; /* of the rest */
	pthread_cond_t changed;
	uint32_t working; /* workers that have not ended */
	enum engram_status status;
	struct engram_error err; /* the first one */
	bool unregistered;	 /* some ring has no registered buffers */
	bool fell_back;		 /* some worker reads by preadv */
	int fall_back_errno;
	int priority_errno; /* why it could not be set, or 0 */
};

/* Set the error unless there is one, and stop all threads. */
void loader_fail(struct loader_shared *shared, enum engram_status status,
		 const struct engram_error *err);
/* Set `stop`, and wake whoever waits for anything but a drive. */
void loader_stop(struct loader_shared *shared);

/*
 * A thread that reads, packs and hashes chunks until there are no more.  One
 * that waits for a drive which does not answer can be left to itself: it then
 * touches nothing but what is its own, and ends when the drive answers.
 */
struct loader_worker;

/* 0 or an errno; `lane` is where it takes chunks from first. */
int loader_worker_start(struct loader_shared *shared, uint32_t lane,
			struct loader_worker **out);
/* It waits, and is left behind; false: it is at work, or has ended. */
bool loader_worker_leave(struct loader_worker *worker);
/* Of one that was not left behind: wait for its end, and free it. */
void loader_worker_join(struct loader_worker *worker);

/* Bytes of arena that a setting takes. */
uint64_t loader_worker_room(const struct loader_plan *plan,
			    struct loader_setting setting, uint32_t align);

/* Thread function: memory ahead of the workers. */
void *loader_populate(void *shared);

#endif
