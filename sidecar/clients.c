/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clients.h"
#include "clock.h"
#include "engram_wire.h"
#include "events.h"
#include "lease.h"
#include "log.h"
#include "methods.h"
#include "rpc.h"
#include "views.h"

static void on_line(void *owner, char *text, size_t len)
{
	rpc_line(owner, text, len);
}

static void on_too_long(void *owner)
{
	rpc_too_long(owner);
}

static void on_overdue(void *owner)
{
	events_drop(owner);
}

static void end_leases(struct client *client)
{
	struct lease *lease, *next;

	for (lease = LIST_FIRST(&client->leases); lease; lease = next) {
		next = LIST_NEXT(lease, entry);
		/* The process may live on, and not know it yet. */
		if (!lease->parked)
			lease->gen->untracked_ns = clock_ns();
		lease_end(lease);
	}
}

static void count(struct server *server, int delta)
{
	server->num_clients += (unsigned int)delta;
	engram_control_store64(&server->page->connections, server->num_clients);
}

/* Everything of the client but its connection. */
static void client_free(struct client *client)
{
	job_waits_forget(client);
	gather_client_ended(&client->server->gather, client);
	end_leases(client);
	TAILQ_REMOVE(&client->server->clients, client, entry);
	count(client->server, -1);
	peer_free(&client->peer);
	free(client);
}

static void on_closed(void *owner)
{
	struct client *client = owner;

	log_debug("connection closed", LOG_U("connection", client->id));
	client->subscribed = false;
	events_client(client->server, client, "closed");
	client_free(client);
}

static const struct conn_ops ops = {.line_max = ENGRAM_LINE_MAX,
				    .line = on_line,
				    .too_long = on_too_long,
				    .overdue = on_overdue,
				    .closed = on_closed};

static enum engram_status check_room(const struct server *server,
				     struct engram_error *err)
{
	uint32_t max = server->config->max_connections;

	if (server->num_clients < max)
		return ENGRAM_OK;
	engram_error_set(err, ENGRAM_EBUSY, "%u connections are open",
			 server->num_clients);
	engram_error_fix(err, "close some, or raise limits.connections");
	engram_error_figures(err, server->num_clients + 1, max);
	return ENGRAM_EBUSY;
}

static struct client *client_new(struct server *server, int fd,
				 struct engram_error *err)
{
	struct client *client = calloc(1, sizeof(*client));

	if (!client) {
		rpc_no_memory(err);
		return NULL;
	}
	if (peer_read(fd, &client->peer, err)) {
		free(client);
		return NULL;
	}
	client->conn = conn_new(server->base, fd, &ops, client);
	if (!client->conn) {
		rpc_no_memory(err);
		peer_free(&client->peer);
		free(client);
		return NULL;
	}
	client->server = server;
	client->id = ++server->next_client;
	client->start_ns = clock_ns();
	LIST_INIT(&client->leases);
	LIST_INIT(&client->waits);
	return client;
}

void clients_accept(void *ctx, int fd)
{
	struct server *server = ctx;
	struct client *client = NULL;
	struct engram_error err;

	if (!check_room(server, &err))
		client = client_new(server, fd, &err);
	if (!client) {
		server->refused++;
		log_failure(LOG_WARN, "connection refused", &err);
		rpc_refuse(fd, &err);
		close(fd);
		return;
	}
	TAILQ_INSERT_TAIL(&server->clients, client, entry);
	count(server, 1);
	log_debug("connection opened", LOG_U("connection", client->id),
		  LOG_I("pid", client->peer.pid),
		  LOG_I("uid", client->peer.uid));
	rpc_notify(client, "hello", view_hello(server));
	events_client(server, client, "connected");
}

void clients_finish(struct server *server)
{
	struct client *client;

	TAILQ_FOREACH(client, &server->clients, entry)
	{
		gather_client_ended(&server->gather, client);
		end_leases(client);
		conn_finish(client->conn);
	}
}

/* Or, once it is lent no more, holds at all? */
static bool reads(const struct client *client, const struct generation *gen)
{
	const bool current = gen == gen->table->current;
	const struct lease *lease;

	LIST_FOREACH(lease, &client->leases, entry)
	if (lease->gen == gen && !(current && lease->parked))
		return true;
	return false;
}

void clients_name_holders(const struct server *server,
			  const struct generation *gen, char *out, size_t size)
{
	const struct client *client;
	size_t at = 0;
	int n;

	*out = '\0';
	TAILQ_FOREACH(client, &server->clients, entry)
	{
		if (!reads(client, gen))
			continue;
		n = snprintf(out + at, size - at, "%spid %d (%s)",
			     at ? ", " : "", (int)client->peer.pid,
			     client->name);
		if (n < 0 || (size_t)n >= size - at)
			return;
		at += (size_t)n;
	}
}

void clients_free(struct server *server)
{
	struct client *client, *next;

	for (client = TAILQ_FIRST(&server->clients); client; client = next) {
		struct conn *conn = client->conn;

		next = TAILQ_NEXT(client, entry);
		client_free(client);
		conn_free(conn);
	}
}
