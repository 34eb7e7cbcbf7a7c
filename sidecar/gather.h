/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gathering for clients: their rings, what is bound to them, and when either
 * may be let go of.  Loop thread only; the threads are in gather_pool.h.
 *
 * A ring belongs to a connection and ends with it.  It is bound to leases of
 * that connection: the generations whose rows may be asked for through it.  A
 * binding holds its generation until no thread reads it any more.
 */
#ifndef ENGRAMD_GATHER_H
#define ENGRAMD_GATHER_H

#include <event2/event.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "engram_error.h"
#include "gather_pool.h"

#define GATHER_CLIENT_RINGS 16 /* of one connection */

struct client;
struct lease;

struct gather_entry {
	LIST_ENTRY(gather_entry) entry;
	uint64_t id;
	int place; /* in the pool */
	struct client *client;
	struct gather_ring *ring;
	struct gather_leaving *leaving;
};

/* What no thread finds any more, until none uses it.  Made with what is to
 * leave one day: letting go can not fail. */
struct gather_leaving {
	LIST_ENTRY(gather_leaving) entry;
	struct gather_ring *ring;
	struct gather_binding *binding; /* of the ring, or NULL: all of it */
	/* who waits for the answer to gather.close, or NULL */
	struct client *client;
	json_t *id;
	uint64_t passes[];
};

struct gather {
	bool running;
	struct gather_pool pool;
	struct event *timer;
	LIST_HEAD(gather_entry_list, gather_entry) rings;
	LIST_HEAD(gather_leaving_list, gather_leaving) leaving;
	uint64_t next_id;
	struct engram_ring_counts closed; /* of rings that were */
};

/* Start the threads, unless they are off. */
enum engram_status gather_start(struct gather *gather, struct event_base *base,
				const struct gather_options *options,
				struct engram_error *err);
/* All connections are gone. */
void gather_stop(struct gather *gather);

/* A ring in the file `fd` (stays the caller's), bound to the lease.
 * ENGRAM_EUNSUPPORTED without threads, ENGRAM_EBUSY, ENGRAM_ENOSPACE, and what
 * engram_ring_map says. */
enum engram_status gather_open(struct gather *gather, struct client *client,
			       int fd, struct lease *lease,
			       struct gather_entry **out,
			       struct engram_error *err);
struct gather_entry *gather_find(struct gather *gather,
				 const struct client *client, uint64_t id);
/* Another lease of the same connection; the same again changes nothing. */
enum engram_status gather_bind(struct gather *gather,
			       struct gather_entry *entry, struct lease *lease,
			       struct engram_error *err);
/* `id`, if not NULL, is answered once no thread writes to the ring. */
void gather_close(struct gather *gather, struct gather_entry *entry,
		  json_t *id);

/* What clients have said since the start, in rings that are closed too. */
void gather_said(const struct gather *gather, struct engram_ring_counts *out);

void gather_lease_ended(struct gather *gather, const struct lease *lease);
void gather_client_ended(struct gather *gather, const struct client *client);

#endif
