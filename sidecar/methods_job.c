/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "methods.h"
#include "views.h"

#define WAIT_DEFAULT_SECONDS 3600.0

/* A job.wait that has not been answered. */
struct job_wait {
	LIST_ENTRY(job_wait) of_server, of_client;
	struct client *client;
	uint64_t job;
	json_t *id;
	struct event *timer;
};

static struct job *find(struct rpc_call *call, struct engram_error *err)
{
	uint64_t id = (uint64_t)rpc_integer(call, "job", 0);
	struct job *job = jobs_find(&call->server->jobs, id);

	if (!job) {
		engram_error_set(err, ENGRAM_ENOTFOUND, "there is no job %llu",
				 (unsigned long long)id);
		engram_error_fix(err,
				 "jobs are known until %d others have ended",
				 JOBS_KEPT);
		engram_error_path(err, "job");
	}
	return job;
}

static enum engram_status reply_job(struct rpc_call *call, struct job *job,
				    struct engram_error *err)
{
	call->result = view_job(job);
	return call->result ? ENGRAM_OK : rpc_no_memory(err);
}

RPC_METHOD_DECL(method_job_get)
{
	struct job *job = find(call, err);

	return job ? reply_job(call, job, err) : ENGRAM_ENOTFOUND;
}

RPC_METHOD_DECL(method_job_cancel)
{
	struct job *job = find(call, err);

	if (!job)
		return ENGRAM_ENOTFOUND;
	tables_cancel(&call->server->tables, job);
	return reply_job(call, job, err);
}

static void wait_free(struct job_wait *wait)
{
	LIST_REMOVE(wait, of_server);
	LIST_REMOVE(wait, of_client);
	event_free(wait->timer);
	json_decref(wait->id);
	free(wait);
}

static void wait_answer(struct job_wait *wait, struct job *job)
{
	rpc_reply(wait->client, wait->id, view_job(job));
	wait_free(wait);
}

static void on_timeout(evutil_socket_t fd, short what, void *arg)
{
	struct job_wait *wait = arg;

	(void)fd;
	(void)what;
	/* It runs still, or this wait would have been answered. */
	wait_answer(wait, jobs_find(&wait->client->server->jobs, wait->job));
}

RPC_METHOD_DECL(method_job_wait)
{
	const json_t *given = json_object_get(call->params, "timeout_seconds");
	double seconds =
		given ? json_number_value(given) : WAIT_DEFAULT_SECONDS;
	struct timeval timeout = {
		.tv_sec = (time_t)seconds,
		.tv_usec = (suseconds_t)((seconds - (double)(time_t)seconds) *
					 1e6)};
	struct job *job = find(call, err);
	struct job_wait *wait;

	if (!job)
		return ENGRAM_ENOTFOUND;
	if (job->state != JOB_RUNNING || seconds <= 0 || !call->id)
		return reply_job(call, job, err);
	wait = calloc(1, sizeof(*wait));
	if (!wait)
		return rpc_no_memory(err);
	wait->timer = event_new(call->server->base, -1, 0, on_timeout, wait);
	if (!wait->timer || event_add(wait->timer, &timeout)) {
		if (wait->timer)
			event_free(wait->timer);
		free(wait);
		return rpc_no_memory(err);
	}
	wait->client = call->client;
	wait->job = job->id;
	wait->id = json_incref(call->id);
	LIST_INSERT_HEAD(&call->server->waits, wait, of_server);
	LIST_INSERT_HEAD(&call->client->waits, wait, of_client);
	call->deferred = true;
	return ENGRAM_OK;
}

void job_waits_answer(struct server *server, struct job *job)
{
	struct job_wait *wait, *next;

	for (wait = LIST_FIRST(&server->waits); wait; wait = next) {
		next = LIST_NEXT(wait, of_server);
		if (wait->job == job->id)
			wait_answer(wait, job);
	}
}

void job_waits_forget(struct client *client)
{
	struct job_wait *wait, *next;

	for (wait = LIST_FIRST(&client->waits); wait; wait = next) {
		next = LIST_NEXT(wait, of_client);
		wait_free(wait);
	}
}
