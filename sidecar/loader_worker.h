/* SPDX-License-Identifier: Apache-2.0 */
/* What the threads of one load share, and what each of them does. */
#ifndef ENGRAMD_LOADER_WORKER_H
#define ENGRAMD_LOADER_WORKER_H

#include <pthread.h>

#include "loader_plan.h"
#include "reader.h"
#include "sources.h"

struct loader_shared {
	struct loader_plan plan;
	struct sources sources;
	struct engram_segment_writer *writer;
	struct loader_progress *progress;
	enum loader_engine wish;   /* as configured */
	enum loader_engine engine; /* that workers try first */
	uint32_t depth;
	uint32_t align;

	_Atomic uint64_t next_chunk;
	_Atomic bool stop;
	pthread_mutex_t lock; /* of the rest */
	enum engram_status status;
	struct engram_error err; /* the first one */
	bool unregistered;	 /* some ring has no registered buffers */
	bool fell_back;		 /* some worker reads by preadv */
	int fall_back_errno;
};

/* Set the error unless there is one, and stop all workers. */
void loader_fail(struct loader_shared *shared, enum engram_status status,
		 const struct engram_error *err);

/* Thread function: chunks until there are no more. */
void *loader_worker(void *shared);

#endif
