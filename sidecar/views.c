/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "engram_wire.h"
#include "figures.h"
#include "http.h"
#include "lease.h"
#include "memory.h"
#include "views.h"
#include "views_gather.h"

json_t *view_text(const char *text)
{
	json_t *value = json_string(text);
	char *copy, *c;

	if (value)
		return value;
	copy = strdup(text);
	if (!copy)
		return NULL;
	for (c = copy; *c; c++)
		if (*c & 0x80)
			*c = '?';
	value = json_string(copy);
	free(copy);
	return value;
}

json_t *view_hex(const uint64_t *words, unsigned int count)
{
	char text[64];
	unsigned int i;

	for (i = 0; i < count; i++)
		snprintf(text + i * 16, sizeof(text) - i * 16, "%016" PRIx64,
			 words[i]);
	return json_string(text);
}

/* Adds what applies; false without memory. */
static bool add_details(json_t *data, const struct engram_error *err,
			const struct job *job)
{
	int failed = 0;

	if (err->fix[0])
		failed |= json_object_set_new(data, "fix", view_text(err->fix));
	if (err->path[0])
		failed |=
			json_object_set_new(data, "path", view_text(err->path));
	if (err->sys_errno)
		failed |= json_object_set_new(data, "errno",
					      json_integer(err->sys_errno));
	if (err->needed || err->available) {
		failed |= json_object_set_new(
			data, "needed", json_integer((json_int_t)err->needed));
		failed |= json_object_set_new(
			data, "available",
			json_integer((json_int_t)err->available));
	}
	if (job)
		failed |= json_object_set_new(
			data, "job", json_integer((json_int_t)job->id));
	return !failed;
}

json_t *view_error(int code, const struct engram_error *err,
		   const struct job *job)
{
	json_t *data =
		json_pack("{s:s}", "name", engram_status_name(err->status));

	if (!data || !add_details(data, err, job)) {
		json_decref(data);
		return NULL;
	}
	return json_pack("{s:i, s:o, s:o}", "code", code, "message",
			 view_text(err->message), "data", data);
}

static json_t *failure_or_null(bool failed, const struct engram_error *err)
{
	return failed ? view_error(ENGRAM_RPC_CODE(err->status), err, NULL)
		      : json_null();
}

/* [{"node":0,"bytes":N}], or null. */
static json_t *view_nodes(const struct generation_layer *layer)
{
	json_t *nodes = json_array();
	int node;

	for (node = 0; nodes && node < ENGRAM_NODES; node++)
		if (layer->node_bytes[node] &&
		    json_array_append_new(
			    nodes,
			    json_pack("{s:i, s:I}", "node", node, "bytes",
				      (json_int_t)layer->node_bytes[node]))) {
			json_decref(nodes);
			return NULL;
		}
	if (!nodes || json_array_size(nodes))
		return nodes;
	json_decref(nodes);
	return json_null();
}

static json_t *view_huge(const struct generation_layer *layer)
{
	const uint64_t huge = atomic_load(&layer->huge_bytes);

	return huge == UINT64_MAX ? json_null()
				  : json_integer((json_int_t)huge);
}

static void segment_of(const struct table *table,
		       const struct generation_layer *layer, char out[256])
{
	engram_segment_copy_name(out, table->tables->instance, table->name,
				 layer->layer_id, layer->header->generation,
				 layer->replica);
}

/* Of layer `i`, one for each node, or null. */
static json_t *view_copies(const struct table *table, uint32_t i)
{
	const struct generation *gen = table->current;
	json_t *copies;
	char name[256];

	if (gen->num_copies == 1)
		return json_null();
	copies = json_array();
	for (; copies && i < gen->num_segments; i += gen->num_layers) {
		const struct generation_layer *layer = &gen->layers[i];

		segment_of(table, layer, name);
		if (json_array_append_new(
			    copies,
			    json_pack("{s:i, s:I, s:o, s:o, s:s}", "node",
				      (int)layer->replica - 1, "bytes",
				      (json_int_t)layer->header->total_bytes,
				      "huge_bytes", view_huge(layer), "nodes",
				      view_nodes(layer), "segment", name))) {
			json_decref(copies);
			return NULL;
		}
	}
	return copies;
}

static json_t *view_layer(const struct table *table, uint32_t i)
{
	const struct generation_layer *layer = &table->current->layers[i];
	const struct engram_segment_header *h = layer->header;
	char name[256];

	segment_of(table, layer, name);
	return json_pack("{s:i, s:I, s:I, s:I, s:o, s:o, s:s, s:o}", "layer_id",
			 (int)h->layer_id, "rows", (json_int_t)h->rows, "dim",
			 (json_int_t)h->dim, "bytes",
			 (json_int_t)h->total_bytes, "huge_bytes",
			 view_huge(layer), "nodes", view_nodes(layer),
			 "segment", name, "copies", view_copies(table, i));
}

static json_t *view_layers(const struct table *table)
{
	const struct generation *gen = table->current;
	json_t *layers = json_array();
	uint32_t i;

	for (i = 0; layers && gen && i < gen->num_layers; i++)
		if (json_array_append_new(layers, view_layer(table, i))) {
			json_decref(layers);
			return NULL;
		}
	return layers;
}

static json_t *view_report(const struct generation *gen)
{
	const struct loader_report *r;

	if (!gen || gen->adopted)
		return json_null();
	r = &gen->report;
	return json_pack(
		"{s:s, s:b, s:b, s:I, s:I, s:I, s:b, s:b, s:f, s:f, s:o}",
		"engine", loader_engine_name(r->engine), "direct", r->direct,
		"registered_buffers", r->registered_buffers, "threads",
		(json_int_t)r->threads, "queue_depth",
		(json_int_t)r->queue_depth, "block_bytes",
		(json_int_t)r->block_bytes, "tuned", r->tuned, "manifest",
		r->manifest, "seconds_read", r->seconds_read, "seconds_verify",
		r->seconds_verify, "reason", view_text(r->engine_reason));
}

static bool add_generation(json_t *array, const struct generation *gen,
			   const char *state)
{
	const struct config_table *config = &gen->spec->config;

	return json_array_append_new(
		       array,
		       json_pack("{s:I, s:s, s:o, s:o, s:I, s:I, s:o}",
				 "generation", (json_int_t)gen->number, "state",
				 state, "content_id",
				 view_hex(gen->content_id, 2), "checkpoint",
				 view_text(config->checkpoint), "bytes",
				 (json_int_t)gen->bytes, "leases",
				 (json_int_t)gen->leases, "superseded_seconds",
				 gen->since_ns ? json_real(clock_seconds_since(
							 gen->since_ns))
					       : json_null())) == 0;
}

/* All that are in memory; the newest of the superseded ones is last. */
static json_t *view_generations(const struct table *table)
{
	json_t *array = json_array();
	const struct generation *gen;
	bool ok = array != NULL;

	if (ok && table->staged)
		ok = add_generation(array, table->staged, "held");
	if (ok && table->current)
		ok = add_generation(array, table->current, "current");
	TAILQ_FOREACH(gen, &table->old, entry)
	ok = ok && add_generation(array, gen,
				  gen->freeing	  ? "freeing"
				  : gen->unwanted ? "unwanted"
						  : "superseded");
	if (ok)
		return array;
	json_decref(array);
	return NULL;
}

/* What is in memory, or else what would be loaded. */
static const struct config_table *shown_config(const struct table *table)
{
	return table->current ? &table->current->spec->config
			      : &table->spec->config;
}

json_t *view_table(const struct table *table)
{
	const struct generation *gen = table->current;
	const struct config_table *config = shown_config(table);

	return json_pack(
		"{s:s, s:s, s:I, s:o, s:o, s:s, s:b, s:I, s:I, s:I, s:o, s:o,"
		" s:o, s:b, s:o, s:b, s:o, s:o, s:o}",
		"name", table->name, "state",
		engram_table_state_name(table->state), "generation",
		(json_int_t)(gen ? gen->number : 0), "content_id",
		gen ? view_hex(gen->content_id, 2) : json_null(), "checkpoint",
		view_text(config->checkpoint), "layout",
		config->layout == ENGRAM_SPLIT ? "split" : "packed",
		"configured", table->configured, "bytes",
		(json_int_t)(gen ? gen->bytes : 0), "leases",
		(json_int_t)table->leases, "writable_leases",
		(json_int_t)table->writable_leases, "job",
		table->job ? json_integer((json_int_t)table->job->id)
			   : json_null(),
		"error", failure_or_null(table->failed, &table->error),
		"loader", view_report(gen), "adopted", gen && gen->adopted,
		"not_adopted",
		gen && gen->not_adopted[0] ? view_text(gen->not_adopted)
					   : json_null(),
		"locked", gen && gen->locked, "huge_advice",
		gen && gen->huge_advice[0] ? view_text(gen->huge_advice)
					   : json_null(),
		"layers", view_layers(table), "generations",
		view_generations(table));
}

static json_t *eta_or_null(const struct figures *f)
{
	return f->eta >= 0 ? json_real(f->eta) : json_null();
}

static json_t *view_job_layers(const struct job *job)
{
	const uint32_t count = atomic_load(&job->progress.num_layers);
	json_t *layers = json_array();
	uint32_t i;

	for (i = 0; layers && i < count; i++) {
		const struct figures f = figures_of_layer(job, i);

		if (json_array_append_new(
			    layers,
			    json_pack(
				    "{s:i, s:I, s:I, s:f, s:o}", "layer_id",
				    (int)atomic_load(
					    &job->progress.layers[i].layer_id),
				    "bytes_total", (json_int_t)f.total,
				    "bytes_done", (json_int_t)f.done, "rate",
				    f.rate, "eta_seconds", eta_or_null(&f)))) {
			json_decref(layers);
			return NULL;
		}
	}
	return layers;
}

json_t *view_job(struct job *job)
{
	const enum job_phase phase = (enum job_phase)atomic_load(&job->phase);
	const uint64_t now =
		job->state == JOB_RUNNING ? clock_ns() : job->end_ns;
	const struct figures f = figures_of_job(job);

	return json_pack(
		"{s:I, s:s, s:s, s:s, s:I, s:I, s:f, s:o, s:o, s:s, s:f, s:o,"
		" s:b, s:o, s:o}",
		"job", (json_int_t)job->id, "kind", job_kind_name(job->kind),
		"table", job->table, "state", job_state_name(job->state),
		"bytes_total", (json_int_t)f.total, "bytes_done",
		(json_int_t)f.done, "rate", f.rate, "eta_seconds",
		eta_or_null(&f), "layers", view_job_layers(job), "phase",
		job_phase_name(phase), "age_seconds",
		(double)(now - job->start_ns) / 1e9, "generation",
		job->generation ? json_integer((json_int_t)job->generation)
				: json_null(),
		"unchanged", job->unchanged, "error",
		failure_or_null(job->state == JOB_FAILED, &job->error),
		"not_adopted",
		atomic_load(&job->refused) ? view_text(job->not_adopted)
					   : json_null());
}

json_t *view_node(const struct lease *lease)
{
	const int node = lease_node(lease);

	return node < 0 ? json_null() : json_integer(node);
}

static json_t *view_lease(const struct lease *lease)
{
	json_t *layers = json_array();
	uint32_t i;

	for (i = 0; layers && i < lease->num_layers; i++)
		if (json_array_append_new(
			    layers,
			    json_integer(
				    lease->gen->layers[lease->layers[i].index]
					    .layer_id))) {
			json_decref(layers);
			return NULL;
		}
	return json_pack("{s:I, s:s, s:I, s:o, s:o, s:b, s:b, s:f}", "lease",
			 (json_int_t)lease->id, "table", lease->table->name,
			 "generation", (json_int_t)lease->gen->number, "layers",
			 layers, "node", view_node(lease), "writable",
			 lease->writable, "parked", lease->parked,
			 "age_seconds", clock_seconds_since(lease->start_ns));
}

json_t *view_holders(const struct server *server, const struct generation *gen)
{
	json_t *array = json_array();
	const struct client *client;

	TAILQ_FOREACH(client, &server->clients, entry)
	{
		if (!array || !lease_of(client, gen))
			continue;
		if (json_array_append_new(
			    array,
			    json_pack("{s:I, s:i, s:o, s:f}", "connection",
				      (json_int_t)client->id, "pid",
				      (int)client->peer.pid, "name",
				      view_text(client->name), "age_seconds",
				      clock_seconds_since(client->start_ns)))) {
			json_decref(array);
			array = NULL;
		}
	}
	return array;
}

json_t *view_client(const struct client *client)
{
	json_t *leases = json_array();
	const struct lease *lease;

	LIST_FOREACH(lease, &client->leases, entry)
	if (json_array_append_new(leases, view_lease(lease))) {
		json_decref(leases);
		return NULL;
	}
	return json_pack(
		"{s:I, s:i, s:I, s:I, s:o, s:f, s:I, s:o, s:o}", "connection",
		(json_int_t)client->id, "pid", (int)client->peer.pid, "uid",
		(json_int_t)client->peer.uid, "gid",
		(json_int_t)client->peer.gid, "name", view_text(client->name),
		"age_seconds", clock_seconds_since(client->start_ns),
		"requests", (json_int_t)client->requests, "leases", leases,
		"rings", view_rings(client));
}

json_t *view_hello(const struct server *server)
{
	return json_pack("{s:s, s:s, s:{s:i, s:i}, s:[ssss], s:s, s:o, s:i,"
			 " s:{s:I, s:i, s:i, s:I}}",
			 "product", "engramd", "version", ENGRAM_VERSION_STRING,
			 "protocol", "major", ENGRAM_PROTOCOL_MAJOR, "minor",
			 ENGRAM_PROTOCOL_MINOR, "capabilities", "attach",
			 "events", "jobs", "nodes", "instance",
			 server->config->instance, "boot_epoch",
			 view_hex(&server->page->boot_epoch, 1), "pid",
			 (int)getpid(), "limits", "line_bytes",
			 (json_int_t)ENGRAM_LINE_MAX, "depth", ENGRAM_DEPTH_MAX,
			 "fds", ENGRAM_FDS_MAX, "connections",
			 (json_int_t)server->config->max_connections);
}

uint64_t view_table_bytes(const struct table *table)
{
	uint64_t bytes = table->current ? table->current->bytes : 0;
	const struct generation *gen;

	bytes += table->staged ? table->staged->bytes : 0;
	TAILQ_FOREACH(gen, &table->old, entry)
	bytes += gen->bytes;
	return bytes;
}

static json_t *view_fd_store(const struct fd_store *store)
{
	if (!store->keeper || !store->there)
		return json_null();
	return json_pack("{s:I, s:o}", "descriptors",
			 (json_int_t)engram_keeper_count(store->keeper), "max",
			 store->max ? json_integer((json_int_t)store->max)
				    : json_null());
}

static json_t *view_memory(const struct server *server)
{
	static const char *const kinds[] = {[ENGRAM_BACKING_SHM] = "shm",
					    [ENGRAM_BACKING_HUGETLBFS] =
						    "hugetlbfs",
					    [ENGRAM_BACKING_MEMFD] = "memfd"};
	const struct engram_backing *backing = &server->tables.backing;
	const struct table *table;
	uint64_t room, bytes = 0;
	bool known;

	known = backing->kind != ENGRAM_BACKING_MEMFD &&
		engram_backing_room(backing, &room, NULL) == ENGRAM_OK;
	TAILQ_FOREACH(table, &server->tables.list, entry)
	bytes += view_table_bytes(table);
	return json_pack("{s:s, s:s, s:o, s:I, s:I, s:o}", "backing",
			 kinds[backing->kind], "dir", backing->dir, "room",
			 known ? json_integer((json_int_t)room) : json_null(),
			 "tables", (json_int_t)bytes, "locked",
			 (json_int_t)memory_locked(), "fd_store",
			 view_fd_store(&server->fd_store));
}

static json_t *view_tables(const struct server *server)
{
	json_t *array = json_array();
	const struct table *table;

	TAILQ_FOREACH(table, &server->tables.list, entry)
	if (json_array_append_new(array, view_table(table))) {
		json_decref(array);
		return NULL;
	}
	return array;
}

static json_t *view_jobs(struct server *server)
{
	json_t *array = json_array();
	struct job *job;

	TAILQ_FOREACH(job, &server->jobs.running, entry)
	if (json_array_append_new(array, view_job(job))) {
		json_decref(array);
		return NULL;
	}
	return array;
}

static json_t *view_metrics(const struct server *server)
{
	if (!server->metrics)
		return json_null();
	return json_pack("{s:s?, s:s?}", "listen",
			 http_address(server->metrics), "path",
			 server->config->metrics.path);
}

json_t *view_status(struct server *server)
{
	return json_pack(
		"{s:s, s:s, s:i, s:f, s:o, s:i, s:b, s:o, s:o, s:o,"
		" s:o, s:o}",
		"instance", server->config->instance, "version",
		ENGRAM_VERSION_STRING, "pid", (int)getpid(), "uptime_seconds",
		clock_seconds_since(server->start_ns), "boot_epoch",
		view_hex(&server->page->boot_epoch, 1), "connections",
		(int)server->num_clients, "stopping", server->stopping,
		"memory", view_memory(server), "tables", view_tables(server),
		"jobs", view_jobs(server), "gather",
		view_gather(&server->gather), "metrics", view_metrics(server));
}
