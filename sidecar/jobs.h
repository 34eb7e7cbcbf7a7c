/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Jobs: work that takes long, done in a thread of its own, known by a
 * number.  All but `progress`, `phase` and `run` belongs to the loop thread.
 */
#ifndef ENGRAMD_JOBS_H
#define ENGRAMD_JOBS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "engram_error.h"
#include "engram_segment.h"
#include "loader.h"
#include "mailbox.h"

#define JOBS_KEPT 256 /* ended ones that job.get still knows */

enum job_kind { JOB_LOAD, JOB_UNLOAD, JOB_VERIFY, JOB_RELOAD, JOB_FREE };
#define JOB_KINDS 5
enum job_state { JOB_RUNNING, JOB_DONE, JOB_FAILED, JOB_CANCELED };
#define JOB_STATES 4
enum job_phase {
	JOB_READING,
	JOB_CHECKING,
	JOB_WAITING,
	JOB_FREEING,
	JOB_COPYING /* to other nodes, and checking that */
};

const char *job_kind_name(enum job_kind kind);
const char *job_state_name(enum job_state state);
const char *job_phase_name(enum job_phase phase);

struct jobs;

struct job {
	TAILQ_ENTRY(job) entry;
	struct jobs *jobs;
	uint64_t id;
	enum job_kind kind;
	enum job_state state;
	char table[ENGRAM_NAME_MAX + 1];
	uint64_t start_ns, end_ns;
	struct engram_error error; /* of an ended job */
	uint64_t generation;	   /* that came of it, 0: none */
	bool unchanged;		   /* a reload that had nothing to do */

	struct loader_progress progress;
	_Atomic int phase; /* enum job_phase */
	_Atomic uint64_t phase_start_ns;
	char not_adopted[256]; /* see generation.h; once it is set: */
	_Atomic bool refused;

	/* In the job's thread.  Whatever it returns is the job's result. */
	enum engram_status (*run)(struct job *job, struct engram_error *err);
	/* In the loop, after the thread has ended and before the job's state
	 * changes: it calls job_end or starts the next thread. */
	void (*finish)(struct job *job, enum engram_status status);
	void *arg;

	struct mail mail;
	pthread_t thread;
	bool threaded; /* its thread has not been joined */
	enum engram_status result;
	uint64_t reported_bytes; /* at the last progress event */
};

TAILQ_HEAD(job_list, job);

struct jobs {
	struct mailbox *mailbox;
	struct job_list running, ended;
	unsigned int num_running, num_ended;
	uint64_t next_id;
	/* of all that have ended */
	uint64_t counts[JOB_KINDS][JOB_STATES];
	uint64_t ns[JOB_KINDS];			     /* that they took */
	uint64_t bytes_read, bytes_verified;	     /* of records */
	void (*changed)(void *ctx, struct job *job); /* started or ended */
	void *ctx;
};

void jobs_init(struct jobs *jobs, struct mailbox *mailbox,
	       void (*changed)(void *ctx, struct job *job), void *ctx);
/* No job may be running. */
void jobs_free(struct jobs *jobs);

/* A running job without a thread yet; NULL without memory. */
struct job *job_new(struct jobs *jobs, enum job_kind kind, const char *table,
		    void *arg);
/* Give it its thread. */
enum engram_status job_start(struct job *job,
			     enum engram_status (*run)(struct job *,
						       struct engram_error *),
			     void (*finish)(struct job *, enum engram_status),
			     struct engram_error *err);
/* The job is over: ENGRAM_OK is done, ENGRAM_ECANCELED canceled, all else
 * failed with job->error. */
void job_end(struct job *job, enum engram_status status);
/* Forget a job that never started. */
void job_discard(struct job *job);

void job_set_phase(struct job *job, enum job_phase phase);
struct job *jobs_find(struct jobs *jobs, uint64_t id);

#endif
