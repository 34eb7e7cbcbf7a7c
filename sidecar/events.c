/* SPDX-License-Identifier: Apache-2.0 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "events.h"
#include "log.h"
#include "rpc.h"
#include "views.h"

static bool any_subscriber(const struct server *server)
{
	const struct client *client;

	TAILQ_FOREACH(client, &server->clients, entry)
	if (client->subscribed)
		return true;
	return false;
}

/* Takes over `params`. */
static void broadcast(struct server *server, const char *method, json_t *params)
{
	char *line = rpc_notification(method, params), *copy;
	struct client *client;

	TAILQ_FOREACH(client, &server->clients, entry)
	{
		if (!client->subscribed || conn_finishing(client->conn))
			continue;
		copy = line ? strdup(line) : NULL;
		if (copy)
			conn_send(client->conn, copy, strlen(copy), NULL);
		else /* it must not believe that it has seen all */
			conn_abort(client->conn);
	}
	free(line);
}

void events_snapshot(struct client *client)
{
	struct server *server = client->server;
	struct table *table;
	struct job *job;

	TAILQ_FOREACH(table, &server->tables.list, entry)
	rpc_notify(client, "event.table", view_table(table));
	TAILQ_FOREACH(job, &server->jobs.running, entry)
	rpc_notify(client, "event.job", view_job(job));
}

void events_table(struct server *server, struct table *table)
{
	table->changed = false;
	if (any_subscriber(server))
		broadcast(server, "event.table", view_table(table));
}

void events_job(struct server *server, struct job *job)
{
	if (any_subscriber(server))
		broadcast(server, "event.job", view_job(job));
}

void events_client(struct server *server, const struct client *client,
		   const char *change)
{
	if (any_subscriber(server))
		broadcast(server, "event.client",
			  json_pack("{s:I, s:s}", "connection",
				    (json_int_t)client->id, "change", change));
}

void events_overdue(struct server *server, const struct generation *gen)
{
	if (any_subscriber(server))
		broadcast(server, "event.overdue",
			  json_pack("{s:s, s:I, s:f, s:o}", "table",
				    gen->table->name, "generation",
				    (json_int_t)gen->number,
				    "superseded_seconds",
				    clock_seconds_since(gen->since_ns),
				    "holders", view_holders(server, gen)));
}

void events_shutdown(struct server *server)
{
	broadcast(server, "event.shutdown", json_object());
}

void events_tick(struct server *server)
{
	struct table *table;
	struct job *job;
	uint64_t bytes;

	TAILQ_FOREACH(table, &server->tables.list, entry)
	if (table->changed)
		events_table(server, table);
	TAILQ_FOREACH(job, &server->jobs.running, entry)
	{
		bytes = atomic_load(&job->progress.bytes_done) +
			atomic_load(&job->progress.bytes_verified);
		if (bytes == job->reported_bytes)
			continue;
		job->reported_bytes = bytes;
		events_job(server, job);
	}
}

void events_drop(struct client *client)
{
	log_warn("client does not read, and is dropped",
		 LOG_U("connection", client->id),
		 LOG_I("pid", client->peer.pid));
	client->subscribed = false;
	conn_discard_output(client->conn);
	rpc_notify(
		client, "event.dropped",
		json_pack("{s:s}", "reason", "too many bytes wait to be read"));
	conn_finish(client->conn);
}
