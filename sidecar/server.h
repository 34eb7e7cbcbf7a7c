/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon: everything the loop thread owns.
 */
#ifndef ENGRAMD_SERVER_H
#define ENGRAMD_SERVER_H

#include <event2/event.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/types.h>

#include "access.h"
#include "config.h"
#include "conn.h"
#include "fd_store.h"
#include "engram_control.h"
#include "gather.h"
#include "jobs.h"
#include "listener.h"
#include "mailbox.h"
#include "tables.h"

struct lease;
struct server;

LIST_HEAD(job_wait_list, job_wait);

/* Requests since the start, by method (in the order of rpc_methods; the last
 * is for those of none) and, of those that failed, by error. */
#define RPC_METHODS_MAX 64
struct rpc_counts {
	uint64_t calls[RPC_METHODS_MAX + 1];
	uint64_t errors[RPC_METHODS_MAX + 1][ENGRAM_STATUS_COUNT];
};

/* The peer of one connection. */
struct client {
	TAILQ_ENTRY(client) entry;
	struct server *server;
	struct conn *conn;
	uint64_t id;
	struct peer peer;
	char name[64]; /* as it calls itself */
	uint64_t start_ns;
	uint64_t requests;
	bool subscribed;
	LIST_HEAD(lease_list, lease) leases;
	struct job_wait_list waits;
};

TAILQ_HEAD(client_list, client);

struct server {
	const char *config_file;
	struct config *config;
	struct event_base *base;
	struct fd_store fd_store;
	struct engram_backing backing; /* never changes */
	struct engram_control_owner *control;
	struct engram_control_page *page;
	int control_fd; /* read-only, for clients */
	uint64_t start_ns;
	struct mailbox mailbox;
	struct jobs jobs;
	struct tables tables;
	struct gather gather;
	struct listener *listener;
	struct client_list clients;
	unsigned int num_clients;
	uint64_t refused; /* connections */
	struct rpc_counts rpc_counts;
	uint64_t adoptions;   /* of generations */
	struct http *metrics; /* or NULL */
	uint64_t next_client, next_lease;
	struct job_wait_list waits;
	struct event *signals[3], *tick, *stop_deadline;
	bool started, stopping;
};

/* Run until told to stop.  Takes over `config`.  Returns the exit code. */
int server_run(const char *config_file, struct config *config);

/* What SIGHUP and config.reload do; on any error all stays as it was. */
enum engram_status server_reload(struct server *server,
				 struct engram_error *err);
/* What SIGTERM and shutdown do. */
void server_stop(struct server *server);

#endif
