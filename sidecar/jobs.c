/* SPDX-License-Identifier: Apache-2.0 */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "clock.h"
#include "jobs.h"
#include "thread.h"

const char *job_kind_name(enum job_kind kind)
{
	static const char *const names[] = {"load", "unload", "verify",
					    "reload", "free"};

	return names[kind];
}

const char *job_state_name(enum job_state state)
{
	static const char *const names[] = {"running", "done", "failed",
					    "canceled"};

	return names[state];
}

const char *job_phase_name(enum job_phase phase)
{
	static const char *const names[] = {"reading", "verifying", "waiting",
					    "freeing", "copying"};

	return names[phase];
}

void jobs_init(struct jobs *jobs, struct mailbox *mailbox,
	       void (*changed)(void *ctx, struct job *job), void *ctx)
{
	*jobs = (struct jobs){.mailbox = mailbox,
			      .next_id = 1,
			      .changed = changed,
			      .ctx = ctx};
	TAILQ_INIT(&jobs->running);
	TAILQ_INIT(&jobs->ended);
}

static void forget_oldest(struct jobs *jobs)
{
	struct job *job = TAILQ_FIRST(&jobs->ended);

	TAILQ_REMOVE(&jobs->ended, job, entry);
	jobs->num_ended--;
	free(job);
}

void jobs_free(struct jobs *jobs)
{
	while (!TAILQ_EMPTY(&jobs->ended))
		forget_oldest(jobs);
}

struct job *job_new(struct jobs *jobs, enum job_kind kind, const char *table,
		    void *arg)
{
	struct job *job = calloc(1, sizeof(*job));

	if (!job)
		return NULL;
	job->jobs = jobs;
	job->id = jobs->next_id++;
	job->kind = kind;
	job->arg = arg;
	job->start_ns = clock_ns();
	snprintf(job->table, sizeof(job->table), "%s", table);
	atomic_init(&job->phase, JOB_READING);
	atomic_init(&job->phase_start_ns, job->start_ns);
	TAILQ_INSERT_TAIL(&jobs->running, job, entry);
	jobs->num_running++;
	return job;
}

void job_discard(struct job *job)
{
	TAILQ_REMOVE(&job->jobs->running, job, entry);
	job->jobs->num_running--;
	free(job);
}

void job_set_phase(struct job *job, enum job_phase phase)
{
	atomic_store(&job->phase_start_ns, clock_ns());
	atomic_store(&job->phase, (int)phase);
}

static void deliver(struct mail *mail)
{
	struct job *job =
		(struct job *)((char *)mail - offsetof(struct job, mail));

	/* The thread posted as its last act. */
	pthread_join(job->thread, NULL);
	job->threaded = false;
	job->finish(job, job->result);
}

static void *thread_main(void *arg)
{
	struct job *job = arg;

	job->result = job->run(job, &job->error);
	job->mail.deliver = deliver;
	mailbox_post(job->jobs->mailbox, &job->mail);
	return NULL;
}

enum engram_status job_start(struct job *job,
			     enum engram_status (*run)(struct job *,
						       struct engram_error *),
			     void (*finish)(struct job *, enum engram_status),
			     struct engram_error *err)
{
	int rc;

	job->run = run;
	job->finish = finish;
	rc = thread_start(&job->thread, thread_main, job);
	if (rc)
		return engram_error_sys(err, rc, "a thread for the %s job",
					job_kind_name(job->kind));
	job->threaded = true;
	return ENGRAM_OK;
}

static void count(struct jobs *jobs, const struct job *job)
{
	jobs->counts[job->kind][job->state]++;
	jobs->ns[job->kind] += job->end_ns - job->start_ns;
	/* what others have done are bytes that were freed */
	if (job->kind == JOB_LOAD || job->kind == JOB_RELOAD)
		jobs->bytes_read += atomic_load(&job->progress.bytes_done);
	jobs->bytes_verified += atomic_load(&job->progress.bytes_verified);
}

void job_end(struct job *job, enum engram_status status)
{
	struct jobs *jobs = job->jobs;

	job->end_ns = clock_ns();
	if (status == ENGRAM_OK)
		job->state = JOB_DONE;
	else if (status == ENGRAM_ECANCELED)
		job->state = JOB_CANCELED;
	else
		job->state = JOB_FAILED;
	count(jobs, job);
	TAILQ_REMOVE(&jobs->running, job, entry);
	jobs->num_running--;
	TAILQ_INSERT_TAIL(&jobs->ended, job, entry);
	jobs->num_ended++;
	jobs->changed(jobs->ctx, job);
	if (jobs->num_ended > JOBS_KEPT)
		forget_oldest(jobs);
}

struct job *jobs_find(struct jobs *jobs, uint64_t id)
{
	struct job *job;

	TAILQ_FOREACH(job, &jobs->running, entry)
	if (job->id == id)
		return job;
	TAILQ_FOREACH(job, &jobs->ended, entry)
	if (job->id == id)
		return job;
	return NULL;
}
