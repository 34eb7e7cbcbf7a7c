/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From one generation of a table to the next, and from one engramd to the
 * next.  What is current is attached as a table of its own, `next`; at a step
 * boundary the two change places inside the caller's handle.
 */
#include <inttypes.h>
#include <string.h>

#include "client.h"
#include "failpoint.h"

/* ---- preparing ---- */

/* Is `next` the memory that is mapped already?  It is after a restart that
 * adopted it. */
static bool same_memory(const struct engram_table *t,
			const struct engram_table *next)
{
	for (uint32_t i = 0; i < t->num_layers; i++) {
		const struct table_layer *a = &t->layers[i];
		const struct table_layer *b = &next->layers[i];

		if (a->dev != b->dev || a->ino != b->ino)
			return false;
	}
	return true;
}

/* The mappings of `t`, which may be registered with a device, stay; what is in
 * them may be another generation. */
static void borrow_mappings(const struct engram_table *t,
			    struct engram_table *next)
{
	for (uint32_t i = 0; i < t->num_layers; i++) {
		struct table_layer *to = &next->layers[i];

		engram_segment_unmap(&to->map);
		to->map = t->layers[i].map;
		to->rows.codes = t->layers[i].rows.codes;
		to->rows.scales = t->layers[i].rows.scales;
	}
	memcpy(next->multipliers, t->multipliers, sizeof(next->multipliers));
	memcpy(next->primes, t->primes, sizeof(next->primes));
	memcpy(next->offsets, t->offsets, sizeof(next->offsets));
	next->borrowed = true;
}

/* Sizes and strides that callers, and graphs they have captured, go by. */
static enum engram_status check_alike(const struct engram_table *t,
				      const struct engram_table *next,
				      struct engram_error *err)
{
	const struct engram_segment_header *a = t->layers[0].map.header;
	const struct engram_segment_header *b = next->layers[0].map.header;
	bool alike = t->num_layers == next->num_layers &&
		     table_same_geometry(a, b) &&
		     a->record_layout == b->record_layout;

	for (uint32_t i = 0; i < t->num_layers && alike; i++) {
		const struct engram_shard *s = &t->layers[i].shard;
		const struct engram_shard *n = &next->layers[i].shard;

		alike = t->layers[i].layer_id == next->layers[i].layer_id &&
			s->head_begin == n->head_begin &&
			s->local_heads == n->local_heads;
	}
	if (alike)
		return ENGRAM_OK;
	engram_error_set(err, ENGRAM_EGEOMETRY,
			 "table \"%s\": generation %" PRIu64 " has another "
			 "geometry than %" PRIu64 ", which is attached",
			 t->name, next->generation, t->generation);
	engram_error_fix(err, "detach, and attach anew");
	return ENGRAM_EGEOMETRY;
}

static void drop(struct engram_table *next)
{
	table_let_go(next);
	table_free(next);
}

static enum engram_status prepare(struct engram_table *t,
				  struct engram_error *err)
{
	/* What is mapped, and registered, is of that node. */
	const int32_t node = t->node >= 0 ? t->node : t->node_asked;
	const struct engram_attach_params params = {
		.table = t->name,
		.layers = t->num_asked ? t->layer_ids : NULL,
		.num_layers = t->num_asked,
		.tp_rank = t->tp_rank,
		.tp_size = t->tp_size,
		.writable = t->writable,
		.choose_node = node >= 0,
		.node = node,
	};
	struct engram_table *next;
	enum engram_status status;

	status = table_attach(t->client, &params, &next, err);
	if (status)
		return status;
	FAILPOINT(client_prepared);
	status = check_alike(t, next, err);
	if (status) {
		drop(next);
		return status;
	}
	if (same_memory(t, next))
		borrow_mappings(t, next);
	t->next = next;
	return ENGRAM_OK;
}

/* Is what the table has been attached to, or `of`, still what is current? */
static bool is_current(const struct engram_table *t,
		       const struct engram_table *of)
{
	const struct engram_control_page *page = of->control;

	return of->serial == t->client->serial &&
	       engram_control_generation(page, t->name) == of->generation &&
	       engram_control_load64(&page->boot_epoch) == of->boot_epoch;
}

static enum engram_status prepare_locked(struct engram_table *t,
					 uint64_t *generation,
					 struct engram_error *err)
{
	enum engram_status status;

	if (t->next && !is_current(t, t->next)) {
		drop(t->next);
		t->next = NULL;
	}
	if (!t->next && (t->parked || !is_current(t, t))) {
		/* The page tells of another sidecar before the socket does. */
		if (t->serial == t->client->serial &&
		    engram_control_load64(&t->control->boot_epoch) !=
			    t->boot_epoch)
			conn_close(&t->client->conn);
		status = prepare(t, err);
		if (status)
			return status;
	}
	if (t->next)
		*generation = t->next->generation;
	return ENGRAM_OK;
}

enum engram_status engram_table_prepare(engram_table *table,
					uint64_t *generation)
{
	struct engram_error *err = client_error();
	enum engram_status status = fork_check(table->fork_generation, err);

	*generation = 0;
	if (status)
		return status;
	pthread_mutex_lock(&table->client->lock);
	status = prepare_locked(table, generation, err);
	pthread_mutex_unlock(&table->client->lock);
	return status;
}

const engram_table *engram_table_prepared(const engram_table *table)
{
	return table->next;
}

/* ---- parking ---- */

enum engram_status table_check_parked(const struct engram_table *t,
				      struct engram_error *err)
{
	if (!t->parked)
		return ENGRAM_OK;
	engram_error_set(err, ENGRAM_ENOTREADY,
			 "table \"%s\" has parked: its memory may be another "
			 "generation's by now",
			 t->name);
	engram_error_fix(err, "change over by engram_table_prepare and "
			      "engram_table_refresh first");
	return ENGRAM_ENOTREADY;
}

/* A lease that went with its connection need not be parked. */
static enum engram_status park_lease(struct engram_table *t,
				     struct engram_error *err)
{
	enum engram_status status;
	json_t *result;

	if (t->client->conn.sock < 0 || t->serial != t->client->serial)
		return ENGRAM_OK;
	status = rpc_call(t->client, "park",
			  json_pack("{s:I}", "lease", (json_int_t)t->lease),
			  &result, NULL, err);
	if (!status)
		json_decref(result);
	return t->client->conn.sock < 0 ? ENGRAM_OK : status;
}

enum engram_status engram_table_park(engram_table *table)
{
	struct engram_error *err = client_error();
	enum engram_status status = fork_check(table->fork_generation, err);

	if (status)
		return status;
	pthread_mutex_lock(&table->client->lock);
	if (table->next)
		drop(table->next);
	table->next = NULL;
	status = park_lease(table, err);
	table->parked = !status;
	pthread_mutex_unlock(&table->client->lock);
	return status;
}

/* ---- changing over ---- */

static enum engram_status not_prepared(const struct engram_table *t,
				       uint64_t generation,
				       struct engram_error *err)
{
	engram_error_set(err, ENGRAM_EGONE,
			 "table \"%s\": generation %" PRIu64 " is not "
			 "prepared",
			 t->name, generation);
	engram_error_fix(err, "call engram_table_prepare, and agree on what it "
			      "gives");
	return ENGRAM_EGONE;
}

/* The two change places, but for what is the handle's own. */
static struct engram_table *swap(struct engram_table *t)
{
	struct engram_table *next = t->next, copy = *t;

	*t = *next;
	*next = copy;
	/* Who has the mappings now owns them. */
	next->borrowed = t->borrowed;
	t->borrowed = false;
	t->next = next->next = NULL;
	return next;
}

enum engram_status engram_table_swap(engram_table *table, uint64_t generation,
				     engram_table **old)
{
	struct engram_error *err = client_error();
	enum engram_status status = fork_check(table->fork_generation, err);
	uint64_t found;

	*old = NULL;
	if (status)
		return status;
	pthread_mutex_lock(&table->client->lock);
	if (!table->next && !generation)
		status = prepare_locked(table, &found, err);
	if (!status && generation &&
	    (!table->next || table->next->generation != generation))
		status = not_prepared(table, generation, err);
	if (!status && table->next)
		*old = swap(table);
	pthread_mutex_unlock(&table->client->lock);
	return status;
}

enum engram_status engram_table_refresh(engram_table *table,
					uint64_t generation)
{
	engram_table *old;
	enum engram_status status = engram_table_swap(table, generation, &old);

	if (status)
		return status;
	FAILPOINT(client_moved);
	return engram_detach(old);
}
