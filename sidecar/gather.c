/* SPDX-License-Identifier: Apache-2.0 */
#include "gather.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "generation.h"
#include "lease.h"
#include "log.h"
#include "rpc.h"

/* How often it is looked whether the threads have passed. */
static const struct timeval soon = {.tv_usec = 1000};

/* ---- letting go ---- */

static void binding_free(struct gather_binding *b)
{
	if (!b)
		return;
	generation_put(b->gen);
	free(b->leaving);
	free(b);
}

static void ring_free(struct gather *gather, struct gather_ring *ring)
{
	for (uint32_t i = 0; i < GATHER_BINDINGS; i++)
		binding_free(atomic_load(&ring->bindings[i]));
	gather_pool_bury(&gather->pool, ring);
}

static void finish_leaving(struct gather *gather, struct gather_leaving *l)
{
	LIST_REMOVE(l, entry);
	if (l->binding) {
		binding_free(l->binding); /* and this with it */
		return;
	}
	ring_free(gather, l->ring);
	if (l->client)
		rpc_reply(l->client, l->id, json_object());
	json_decref(l->id);
	free(l);
}

static void on_timer(evutil_socket_t fd, short what, void *arg)
{
	struct gather *gather = arg;
	struct gather_leaving *l, *next;

	(void)fd;
	(void)what;
	for (l = LIST_FIRST(&gather->leaving); l; l = next) {
		next = LIST_NEXT(l, entry);
		/* no thread that found it is in the same pass */
		if (gather_pool_passed(&gather->pool, l->passes))
			finish_leaving(gather, l);
	}
	if (!LIST_EMPTY(&gather->leaving))
		event_add(gather->timer, &soon);
}

static struct gather_leaving *leaving_new(const struct gather *gather)
{
	return calloc(1, sizeof(struct gather_leaving) +
				 gather->pool.num_workers * sizeof(uint64_t));
}

/* It can not be found from here on. */
static void leave(struct gather *gather, struct gather_leaving *l)
{
	gather_pool_passes(&gather->pool, l->passes);
	LIST_INSERT_HEAD(&gather->leaving, l, entry);
	event_add(gather->timer, &soon);
}

static void unbind(struct gather *gather, struct gather_ring *ring, uint32_t at)
{
	struct gather_binding *b = atomic_load(&ring->bindings[at]);

	atomic_store(&ring->bindings[at], NULL);
	b->leaving->ring = ring;
	b->leaving->binding = b;
	leave(gather, b->leaving);
}

/* ---- binding ---- */

static struct gather_binding *binding_new(const struct gather *gather,
					  struct lease *lease)
{
	const struct generation *gen = lease->gen;
	struct gather_binding *b =
		calloc(1, sizeof(*b) + gen->num_copies * lease->num_layers *
					       sizeof(b->layers[0]));
	uint32_t i, copy, at = 0;

	if (!b)
		return NULL;
	b->leaving = leaving_new(gather);
	if (!b->leaving) {
		free(b);
		return NULL;
	}
	b->lease = lease->id;
	b->generation = lease->gen->number;
	b->gen = lease->gen;
	b->num_layers = lease->num_layers;
	b->nearest = gen->num_copies > 1 ? gen->nearest : NULL;
	for (copy = 0; copy < gen->num_copies; copy++)
		for (i = 0; i < lease->num_layers; i++, at++) {
			const struct generation_layer *layer = &generation_copy(
				gen,
				copy)[lease->layers[i].index % gen->num_layers];
			const struct engram_shard *shard =
				&lease->layers[i].shard;

			b->layers[at].layer_id = layer->layer_id;
			generation_layer_rows(layer, shard->row_begin,
					      shard->row_end,
					      &b->layers[at].rows);
		}
	generation_get(b->gen);
	return b;
}

static enum engram_status check_rows(const struct gather_entry *entry,
				     const struct lease *lease,
				     struct engram_error *err)
{
	const struct engram_segment_header *h =
		lease->gen->layers[lease->layers[0].index].header;
	uint64_t bytes = engram_segment_record_bytes(h);

	if (bytes == entry->ring->ring.shape.row_bytes)
		return ENGRAM_OK;
	engram_error_set(err, ENGRAM_EINVAL,
			 "the ring is for rows of %" PRIu32 " bytes, those of "
			 "table \"%s\" have %" PRIu64,
			 entry->ring->ring.shape.row_bytes, lease->table->name,
			 bytes);
	engram_error_fix(err, "open another ring for this table");
	return ENGRAM_EINVAL;
}

enum engram_status gather_bind(struct gather *gather,
			       struct gather_entry *entry, struct lease *lease,
			       struct engram_error *err)
{
	struct gather_binding *b;
	int at = -1;

	if (check_rows(entry, lease, err))
		return err->status;
	for (int i = GATHER_BINDINGS - 1; i >= 0; i--) {
		b = atomic_load(&entry->ring->bindings[i]);
		if (!b)
			at = i;
		else if (b->lease == lease->id)
			return ENGRAM_OK;
	}
	if (at < 0) {
		engram_error_set(err, ENGRAM_EBUSY,
				 "the ring is bound to %d leases",
				 GATHER_BINDINGS);
		engram_error_fix(err, "detach the leases of generations that "
				      "are no longer read");
		return ENGRAM_EBUSY;
	}
	b = binding_new(gather, lease);
	if (!b)
		return rpc_no_memory(err);
	atomic_store(&entry->ring->bindings[at], b);
	return ENGRAM_OK;
}

/* ---- opening ---- */

static enum engram_status check_room(const struct gather *gather,
				     const struct client *client,
				     struct engram_error *err)
{
	const struct gather_entry *e;
	unsigned int own = 0;

	if (!gather->running) {
		engram_error_set(err, ENGRAM_EUNSUPPORTED,
				 "this sidecar has no gather threads");
		engram_error_fix(err, "set gather.enabled of the configuration "
				      "to true, or read the rows by another "
				      "path");
		return ENGRAM_EUNSUPPORTED;
	}
	LIST_FOREACH(e, &gather->rings, entry)
	own += e->client == client;
	if (own < GATHER_CLIENT_RINGS && gather_pool_place(&gather->pool) >= 0)
		return ENGRAM_OK;
	engram_error_set(err, ENGRAM_EBUSY,
			 own < GATHER_CLIENT_RINGS
				 ? "all %d rings are open"
				 : "this connection has %d rings open",
			 own < GATHER_CLIENT_RINGS ? GATHER_RINGS_MAX
						   : GATHER_CLIENT_RINGS);
	engram_error_fix(err, "close some, or read the rows by another path");
	return ENGRAM_EBUSY;
}

static enum engram_status check_size(const struct gather *gather,
				     const struct engram_ring *ring,
				     struct engram_error *err)
{
	uint64_t most = gather->pool.options.ring_bytes;

	if (ring->bytes <= most)
		return ENGRAM_OK;
	engram_error_set(err, ENGRAM_ENOSPACE,
			 "a ring of %" PRIu64 " bytes; at most %" PRIu64
			 " are allowed",
			 ring->bytes, most);
	engram_error_fix(err, "ask for fewer rows or slots, or raise "
			      "gather.ring_bytes of the configuration");
	engram_error_figures(err, ring->bytes, most);
	return ENGRAM_ENOSPACE;
}

/* Of one that no thread has seen. */
static void entry_free(struct gather_entry *entry)
{
	gather_ring_free(entry->ring);
	free(entry->leaving);
	free(entry);
}

static struct gather_entry *entry_new(const struct gather *gather)
{
	struct gather_entry *entry = calloc(1, sizeof(*entry));

	if (!entry)
		return NULL;
	entry->ring = gather_ring_new(gather->pool.num_workers);
	entry->leaving = leaving_new(gather);
	if (entry->ring && entry->leaving)
		return entry;
	entry_free(entry);
	return NULL;
}

enum engram_status gather_open(struct gather *gather, struct client *client,
			       int fd, struct lease *lease,
			       struct gather_entry **out,
			       struct engram_error *err)
{
	struct gather_entry *entry;
	enum engram_status status;

	status = check_room(gather, client, err);
	if (status)
		return status;
	entry = entry_new(gather);
	if (!entry)
		return rpc_no_memory(err);
	status = engram_ring_map(fd, &entry->ring->ring, err);
	if (!status)
		status = check_size(gather, &entry->ring->ring, err);
	if (!status)
		status = gather_bind(gather, entry, lease, err);
	if (status) {
		entry_free(entry);
		return status;
	}
	entry->client = client;
	entry->id = ++gather->next_id;
	gather_ring_begin(entry->ring, entry->id);
	entry->place = gather_pool_place(&gather->pool);
	LIST_INSERT_HEAD(&gather->rings, entry, entry);
	gather_pool_put(&gather->pool, entry->place, entry->ring);
	*out = entry;
	return ENGRAM_OK;
}

struct gather_entry *gather_find(struct gather *gather,
				 const struct client *client, uint64_t id)
{
	struct gather_entry *e;

	LIST_FOREACH(e, &gather->rings, entry)
	if (e->client == client && e->id == id)
		return e;
	return NULL;
}

/* ---- closing ---- */

static void add_said(struct engram_ring_counts *to,
		     const struct gather_ring *ring)
{
	const struct engram_ring_counts *said =
		&engram_ring_header(&ring->ring)->counts;

	to->fallback += __atomic_load_n(&said->fallback, __ATOMIC_RELAXED);
	to->failed += __atomic_load_n(&said->failed, __ATOMIC_RELAXED);
	to->cache_lookups +=
		__atomic_load_n(&said->cache_lookups, __ATOMIC_RELAXED);
	to->cache_hits += __atomic_load_n(&said->cache_hits, __ATOMIC_RELAXED);
	to->repeats += __atomic_load_n(&said->repeats, __ATOMIC_RELAXED);
	to->cache_fills +=
		__atomic_load_n(&said->cache_fills, __ATOMIC_RELAXED);
}

void gather_said(const struct gather *gather, struct engram_ring_counts *out)
{
	const struct gather_entry *e;

	*out = gather->closed;
	LIST_FOREACH(e, &gather->rings, entry)
	add_said(out, e->ring);
}

void gather_close(struct gather *gather, struct gather_entry *entry, json_t *id)
{
	struct gather_leaving *l = entry->leaving;

	gather_pool_take(&gather->pool, entry->place);
	LIST_REMOVE(entry, entry);
	add_said(&gather->closed, entry->ring);
	l->ring = entry->ring;
	if (id) {
		l->client = entry->client;
		l->id = json_incref(id);
	}
	free(entry);
	leave(gather, l);
}

void gather_lease_ended(struct gather *gather, const struct lease *lease)
{
	struct gather_entry *e;

	LIST_FOREACH(e, &gather->rings, entry)
	for (uint32_t i = 0; i < GATHER_BINDINGS; i++) {
		struct gather_binding *b = atomic_load(&e->ring->bindings[i]);

		if (b && b->lease == lease->id)
			unbind(gather, e->ring, i);
	}
}

void gather_client_ended(struct gather *gather, const struct client *client)
{
	struct gather_entry *e, *next;
	struct gather_leaving *l;

	LIST_FOREACH(l, &gather->leaving, entry)
	if (l->client == client)
		l->client = NULL;
	for (e = LIST_FIRST(&gather->rings); e; e = next) {
		next = LIST_NEXT(e, entry);
		if (e->client == client)
			gather_close(gather, e, NULL);
	}
}

/* ---- starting and stopping ---- */

enum engram_status gather_start(struct gather *gather, struct event_base *base,
				const struct gather_options *options,
				struct engram_error *err)
{
	enum engram_status status;

	if (options->off)
		return ENGRAM_OK;
	gather->timer = event_new(base, -1, 0, on_timer, gather);
	if (!gather->timer)
		return engram_error_set(err, ENGRAM_ENOMEM,
					"no memory for events");
	status = gather_pool_start(&gather->pool, options, err);
	if (status)
		return status;
	gather->running = true;
	return ENGRAM_OK;
}

void gather_stop(struct gather *gather)
{
	struct gather_leaving *l, *next;

	if (gather->running)
		gather_pool_join(&gather->pool);
	for (l = LIST_FIRST(&gather->leaving); l; l = next) {
		next = LIST_NEXT(l, entry);
		finish_leaving(gather, l);
	}
	if (gather->running)
		gather_pool_free(&gather->pool);
	if (gather->timer)
		event_free(gather->timer);
	gather->timer = NULL;
	gather->running = false;
}
