/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside libengram: the client behind the opaque handle.
 */
#ifndef ENGRAM_CLIENT_H
#define ENGRAM_CLIENT_H

#include <jansson.h>
#include <pthread.h>
#include <stdbool.h>

#include "conn.h"
#include "engram.h"
#include "engram_control.h"
#include "engram_segment.h"
#include "fork.h"

/* Notifications kept for engram_next_event; the oldest go first. */
#define CLIENT_EVENTS_MAX  1024u
#define CLIENT_EVENT_BYTES (4u << 20)

struct client_events {
	char *text[CLIENT_EVENTS_MAX];
	unsigned int head, count;
	size_t bytes;
	uint64_t lost;
};

struct engram_client {
	pthread_mutex_t lock; /* all below but what never changes */
	unsigned int fork_generation;
	struct fork_entry fork_entry;
	struct conn conn;
	int wake; /* eventfd: a call has queued events */
	int64_t next_id;
	struct client_events events;
	unsigned int num_tables;

	uint64_t serial;  /* of the connection: leases of another are gone */
	int64_t retry_at; /* when to connect anew, conn_now() */
	int backoff_ms;
	bool has_nodes;	     /* `attach` takes a node */
	uint64_t boot_epoch; /* stored atomically, for engram_boot_epoch */
	char version[32];

	/* never changes after engram_open */
	int call_timeout_ms;
	char *path;
	json_t *naming; /* parameters of client.name, or NULL */
	char instance[ENGRAM_NAME_MAX + 1];
};

/* ---- client.c ---- */

/*
 * With the lock held: a connection to the sidecar that the control page is
 * of, made anew if it was lost.  Never waits for a sidecar to come up: when
 * it was tried not long ago this is ENGRAM_EDISCONNECTED at once.
 */
enum engram_status client_connected(struct engram_client *client,
				    struct engram_error *err);

/* ---- last_error.c ---- */

/* The calling thread's error, to be filled by a function that fails. */
struct engram_error *client_error(void);

/* ---- rpc.c: no locking; `client` is the caller's ---- */

/* Read the greeting and remember what it says. */
enum engram_status rpc_greeting(struct engram_client *client, int64_t deadline,
				struct engram_error *err);

/*
 * One request and its answer.  `params` is stolen and may be NULL; *result is
 * a new reference.  `fds`, if not NULL, gets the descriptors of the answer.
 * A product error of the answer is returned as its status.
 */
enum engram_status rpc_call(struct engram_client *client, const char *method,
			    json_t *params, json_t **result,
			    struct conn_fds *fds, struct engram_error *err);

/* The same with a descriptor that goes along; it stays the caller's. */
enum engram_status rpc_call_fd(struct engram_client *client, const char *method,
			       json_t *params, int fd, json_t **result,
			       struct engram_error *err);

/* A request that gets no answer, and that does not wait for a sidecar that
 * does not read: then the connection is closed.  `params` is stolen. */
enum engram_status rpc_notify(struct engram_client *client, const char *method,
			      json_t *params, struct engram_error *err);

/* A value as text, malloc'd; NULL without memory.  `len` may be NULL. */
char *rpc_dump(const json_t *value, size_t *len, struct engram_error *err);

/* Why json_pack_ex could not pack a string from the caller. */
enum engram_status rpc_pack_fault(const char *what, const json_error_t *fault,
				  struct engram_error *err);

/* Have one thread in engram_next_event look again. */
void rpc_wake(struct engram_client *client);

/* Read notifications that have come, without waiting. */
enum engram_status rpc_pump(struct engram_client *client,
			    struct engram_error *err);

/* ---- events.c ---- */

enum engram_status events_push(struct client_events *events, const char *line,
			       size_t len, struct engram_error *err);
/* The oldest, or NULL; malloc'd. */
char *events_pop(struct client_events *events);
void events_free(struct client_events *events);

/* ---- attach.c ---- */

struct table_layer {
	int32_t layer_id;
	uint64_t dev, ino; /* of the segment */
	struct engram_segment_map map;
	struct engram_shard shard;
	struct engram_rows rows;
};

struct engram_table {
	struct engram_client *client;
	unsigned int fork_generation;
	char name[ENGRAM_NAME_MAX + 1];
	int64_t lease;
	uint64_t serial; /* of the connection that the lease is of */
	uint64_t generation;
	uint64_t boot_epoch;
	char content_id[33];
	uint32_t tp_rank, tp_size;
	const struct engram_control_page *control;
	uint32_t num_layers;
	int32_t layer_ids[ENGRAM_LAYERS_MAX]; /* that were asked for, if any */
	uint32_t num_asked;
	bool writable;
	int32_t node;		   /* of memory that its copy is for, or -1 */
	int32_t node_asked;	   /* or -1 */
	bool parked;		   /* nobody reads by it until it moves */
	bool borrowed;		   /* `layers` are those of the table before */
	struct engram_table *next; /* prepared; under the client's lock */
	struct table_layer layers[ENGRAM_LAYERS_MAX];
	/* what engram_hash_params points to */
	const int64_t *multipliers[ENGRAM_LAYERS_MAX];
	const int64_t *primes[ENGRAM_LAYERS_MAX];
	const int64_t *offsets[ENGRAM_LAYERS_MAX];
};

/* With the lock held: the current generation as a table of its own. */
enum engram_status table_attach(struct engram_client *client,
				const struct engram_attach_params *params,
				struct engram_table **out,
				struct engram_error *err);
/* With the lock held: the lease goes, and is counted no more. */
void table_let_go(struct engram_table *table);
/* ENGRAM_ENOTREADY for one that has parked. */
enum engram_status table_check_parked(const struct engram_table *table,
				      struct engram_error *err);
/* Unmap, free. */
void table_free(struct engram_table *table);
/* Are rows laid out, hashed and sharded alike? */
bool table_same_geometry(const struct engram_segment_header *a,
			 const struct engram_segment_header *b);

#endif
