/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <unistd.h>

#include "gather_handle.h"

#define SLOTS_DFLT   2
#define ROWS_DFLT    65536
#define TIMEOUT_DFLT 50
#define TIMEOUT_MAX  60000

/* ---- engramd's hold of the ring ---- */

static enum engram_status bad_answer(struct engram_error *err)
{
	engram_error_set(err, ENGRAM_EPROTOCOL,
			 "the answer to gather.open: no \"ring\"");
	engram_error_fix(err, "install engramd and libengram of the same "
			      "release");
	return ENGRAM_EPROTOCOL;
}

static enum engram_status open_ring(struct engram_gather *g,
				    struct engram_error *err)
{
	struct engram_client *client = g->table->client;
	enum engram_status status;
	json_t *result;

	status = rpc_call_fd(
		client, "gather.open",
		json_pack("{s:I}", "lease", (json_int_t)g->table->lease), g->fd,
		&result, err);
	if (status)
		return status;
	g->id = json_integer_value(json_object_get(result, "ring"));
	g->threads = (uint32_t)json_integer_value(
		json_object_get(result, "threads"));
	json_decref(result);
	return g->id > 0 ? ENGRAM_OK : bad_answer(err);
}

static enum engram_status bind_ring(struct engram_gather *g,
				    struct engram_error *err)
{
	enum engram_status status;
	json_t *result;

	status = rpc_call(g->table->client, "gather.bind",
			  json_pack("{s:I, s:I}", "ring", (json_int_t)g->id,
				    "lease", (json_int_t)g->table->lease),
			  &result, NULL, err);
	if (!status)
		json_decref(result);
	return status;
}

enum engram_status gather_sync(struct engram_gather *g,
			       struct engram_error *err)
{
	struct engram_client *client = g->table->client;
	enum engram_status status;

	if (!gather_moved(g))
		return ENGRAM_OK;
	pthread_mutex_lock(&client->lock);
	if (g->served && g->serial == g->table->serial)
		status = bind_ring(g, err);
	else
		status = open_ring(g, err);
	pthread_mutex_unlock(&client->lock);
	/* Once for each lease, whatever comes of it. */
	g->serial = g->table->serial;
	g->lease = g->table->lease;
	g->served = !status;
	return status;
}

enum engram_status engram_gather_sync(engram_gather *gather)
{
	struct engram_error *err = client_error();
	enum engram_status status =
		fork_check(gather->table->fork_generation, err);

	return status ? status : gather_sync(gather, err);
}

void engram_gather_wake(engram_gather *gather)
{
	struct engram_client *client = gather->table->client;

	/* Ordered after a post, as the threads look for posts once more after
	 * they have said that they sleep. */
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	if (!__atomic_load_n(&engram_ring_header(&gather->ring)->asleep,
			     __ATOMIC_RELAXED) ||
	    fork_check(gather->table->fork_generation, NULL))
		return;
	/* They look now and then, should this fail. */
	pthread_mutex_lock(&client->lock);
	rpc_notify(client, "gather.wake", NULL, NULL);
	pthread_mutex_unlock(&client->lock);
}

/* ---- the handle ---- */

static enum engram_status read_params(struct engram_gather *g,
				      const struct engram_gather_params *params,
				      struct engram_ring_shape *shape,
				      struct engram_error *err)
{
	static const struct engram_gather_params defaults;
	const struct engram_gather_params *p = params ? params : &defaults;

	if (p->timeout_ms < 0 || p->timeout_ms > TIMEOUT_MAX)
		return engram_error_set(err, ENGRAM_EINVAL,
					"timeout_ms: %d, must be 0 to %d",
					p->timeout_ms, TIMEOUT_MAX);
	g->timeout_ms = p->timeout_ms ? p->timeout_ms : TIMEOUT_DFLT;
	*shape = (struct engram_ring_shape){
		.slots = p->slots ? p->slots : SLOTS_DFLT,
		.max_rows = p->max_rows ? p->max_rows : ROWS_DFLT,
		.row_bytes = (uint32_t)engram_segment_record_bytes(
			g->table->layers[0].map.header),
	};
	return ENGRAM_OK;
}

static void gather_free(struct engram_gather *g)
{
	engram_ring_unmap(&g->ring);
	if (g->fd >= 0)
		close(g->fd);
	fork_unwatch(&g->fork_entry);
	free(g);
}

static enum engram_status make(struct engram_gather *g,
			       const struct engram_gather_params *params,
			       struct engram_error *err)
{
	struct engram_ring_shape shape;
	enum engram_status status = read_params(g, params, &shape, err);

	if (!status)
		status = engram_ring_create(&shape, &g->ring, &g->fd, err);
	if (!status)
		status = gather_sync(g, err);
	return status;
}

enum engram_status engram_gather_open(engram_table *table,
				      const struct engram_gather_params *params,
				      engram_gather **out)
{
	struct engram_error err;
	struct engram_gather *g;

	*out = NULL;
	if (fork_check(table->fork_generation, &err))
		return engram_set_last_error(&err);
	g = calloc(1, sizeof(*g));
	if (!g) {
		engram_error_set(&err, ENGRAM_ENOMEM,
				 "no memory for a gather handle");
		return engram_set_last_error(&err);
	}
	g->table = table;
	g->fd = -1;
	g->lease = -1;
	g->fork_entry.fds[0] = &g->fd;
	g->fork_entry.fds[1] = NULL;
	if (fork_watch(&g->fork_entry, &err)) {
		free(g);
		return engram_set_last_error(&err);
	}
	if (make(g, params, &err)) {
		gather_free(g);
		return engram_set_last_error(&err);
	}
	*out = g;
	return ENGRAM_OK;
}

enum engram_status engram_gather_close(engram_gather *gather)
{
	struct engram_client *client;

	if (!gather)
		return ENGRAM_OK;
	if (fork_check(gather->table->fork_generation, client_error()))
		return ENGRAM_EINVAL;
	client = gather->table->client;
	pthread_mutex_lock(&client->lock);
	/* engramd has a mapping of its own: nobody need wait for it. */
	if (gather->served && gather->serial == client->serial)
		rpc_notify(client, "gather.close",
			   json_pack("{s:I}", "ring", (json_int_t)gather->id),
			   NULL);
	pthread_mutex_unlock(&client->lock);
	gather_free(gather);
	return ENGRAM_OK;
}

const struct engram_ring *engram_gather_ring(const engram_gather *gather)
{
	return &gather->ring;
}
