/* SPDX-License-Identifier: Apache-2.0 */
#include "loopback.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct member {
	struct world *world;
	struct engram_comm comm;
	const void *send;
	size_t bytes;
	struct loopback_result *result;
};

struct world {
	const struct loopback_params *params;
	const struct loopback_ops *ops;
	struct member members[LOOPBACK_MAX];
	loopback_rank *run;
	void *arg;
	pthread_mutex_t lock;
	pthread_cond_t moved;
	uint32_t arrived;
	uint64_t meetings;
	int broken;
};

static void break_up(struct world *w)
{
	pthread_mutex_lock(&w->lock);
	w->broken = 1;
	pthread_cond_broadcast(&w->moved);
	pthread_mutex_unlock(&w->lock);
}

/* Returns 0 when every rank got here, -1 when one never will. */
static int meet(struct world *w)
{
	uint64_t meeting;
	int rc;

	pthread_mutex_lock(&w->lock);
	meeting = w->meetings;
	if (!w->broken && ++w->arrived == w->params->size) {
		w->arrived = 0;
		w->meetings++;
		pthread_cond_broadcast(&w->moved);
	}
	while (meeting == w->meetings && !w->broken)
		pthread_cond_wait(&w->moved, &w->lock);
	/* whoever met goes on, even if one has left since */
	rc = meeting == w->meetings ? -1 : 0;
	pthread_mutex_unlock(&w->lock);
	return rc;
}

static enum engram_status broken(struct engram_error *err)
{
	return engram_error_set(err, ENGRAM_ENCCL, "a rank has left");
}

static enum engram_status exchange(struct member *self, void *recv,
				   engram_stream stream,
				   struct engram_error *err)
{
	const struct loopback_ops *ops = self->world->ops;
	enum engram_status status = ENGRAM_OK;

	for (uint32_t from = 0; !status && from < self->comm.size; from++) {
		const struct member *m = &self->world->members[from];

		if (m->bytes != self->bytes)
			return engram_error_set(
				err, ENGRAM_EINTERNAL,
				"rank %u sends %zu bytes, rank %u %zu", from,
				m->bytes, self->comm.rank, self->bytes);
		status = ops->copy(ops->context, from,
				   (char *)recv + from * self->bytes, m->send,
				   self->bytes, stream, err);
	}
	return status;
}

static enum engram_status all_gather(void *context, const void *send,
				     void *recv, size_t bytes,
				     engram_stream stream,
				     struct engram_error *err)
{
	struct member *self = context;
	const struct loopback_params *params = self->world->params;
	const struct loopback_ops *ops = self->world->ops;
	enum engram_status status;

	if (++self->result->calls == params->fail_call &&
	    self->comm.rank == params->fail_rank)
		return engram_error_set(err, ENGRAM_ENCCL, "made to fail");
	self->send = send;
	self->bytes = bytes;
	status = ops->ready(ops->context, self->comm.rank, stream, err);
	if (status)
		return status;
	if (meet(self->world))
		return broken(err);
	status = exchange(self, recv, stream, err);
	if (!status)
		status = ops->done(ops->context, self->comm.rank, stream, err);
	if (status)
		return status;
	if (meet(self->world))
		return broken(err);
	return ops->settle(ops->context, stream, err);
}

static void *rank_main(void *arg)
{
	struct member *self = arg;

	self->result->status = self->world->run(&self->comm, self->world->arg,
						&self->result->err);
	break_up(self->world);
	return NULL;
}

void loopback_run(const struct loopback_params *params, loopback_rank *run,
		  void *arg, struct loopback_result *results)
{
	struct world w = {
		.params = params,
		.ops = params->ops ? params->ops : &loopback_host,
		.run = run,
		.arg = arg,
		.lock = PTHREAD_MUTEX_INITIALIZER,
		.moved = PTHREAD_COND_INITIALIZER,
	};
	pthread_t threads[LOOPBACK_MAX];

	if (params->size < 1 || params->size > LOOPBACK_MAX)
		abort();
	for (uint32_t rank = 0; rank < params->size; rank++) {
		struct member *m = &w.members[rank];

		memset(&results[rank], 0, sizeof(results[rank]));
		m->world = &w;
		m->result = &results[rank];
		m->comm = (struct engram_comm){
			.rank = rank,
			.size = params->size,
			.all_gather = all_gather,
			.context = m,
		};
		if (pthread_create(&threads[rank], NULL, rank_main, m))
			abort();
	}
	for (uint32_t rank = 0; rank < params->size; rank++)
		pthread_join(threads[rank], NULL);
}

static enum engram_status host_nothing(void *context, uint32_t rank,
				       engram_stream stream,
				       struct engram_error *err)
{
	(void)context;
	(void)rank;
	(void)stream;
	(void)err;
	return ENGRAM_OK;
}

static enum engram_status host_copy(void *context, uint32_t from, void *to,
				    const void *what, size_t bytes,
				    engram_stream stream,
				    struct engram_error *err)
{
	(void)context;
	(void)from;
	(void)stream;
	(void)err;
	memcpy(to, what, bytes);
	return ENGRAM_OK;
}

static enum engram_status host_settle(void *context, engram_stream stream,
				      struct engram_error *err)
{
	(void)context;
	(void)stream;
	(void)err;
	return ENGRAM_OK;
}

const struct loopback_ops loopback_host = {
	.ready = host_nothing,
	.copy = host_copy,
	.done = host_nothing,
	.settle = host_settle,
};
