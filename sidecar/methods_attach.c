/* SPDX-License-Identifier: Apache-2.0 */
#include "events.h"
#include "failpoint.h"
#include "lease.h"
#include "log.h"
#include "methods.h"
#include "numa.h"
#include "parcel.h"
#include "views.h"

static enum engram_status check_ready(struct rpc_call *call,
				      struct table *table,
				      struct engram_error *err)
{
	if (table->state == ENGRAM_TABLE_READY)
		return ENGRAM_OK;
	call->job = table->job;
	if (table->state == ENGRAM_TABLE_DRAINING) {
		bool replaced = table->job && table->job->kind == JOB_RELOAD;

		engram_error_set(err, ENGRAM_EDRAINING,
				 "table \"%s\" is being %s", table->name,
				 replaced ? "replaced" : "unloaded");
		engram_error_fix(err, replaced ? "wait for the job"
					       : "load it again once it is "
						 "absent");
		return ENGRAM_EDRAINING;
	}
	engram_error_set(err, ENGRAM_ENOTREADY, "table \"%s\" is %s%s%s",
			 table->name, engram_table_state_name(table->state),
			 table->failed ? ": " : "",
			 table->failed ? table->error.message : "");
	if (table->job)
		engram_error_fix(err, "wait for the job");
	else if (table->failed && table->error.fix[0])
		engram_error_fix(err, "%s; then load it again",
				 table->error.fix);
	else
		engram_error_fix(err, "load the table first");
	return ENGRAM_ENOTREADY;
}

static enum engram_status add_layer(const struct generation *gen, json_t *item,
				    size_t at, uint32_t *layers,
				    struct engram_error *err)
{
	json_int_t wanted = json_integer_value(item);
	uint32_t index;
	size_t i;

	for (index = 0; index < gen->num_layers; index++)
		if (gen->layers[index].layer_id == wanted)
			break;
	engram_error_clear(err);
	if (index == gen->num_layers)
		engram_error_set(err, ENGRAM_ENOTFOUND,
				 "the table has no layer %lld",
				 (long long)wanted);
	for (i = 0; i < at; i++)
		if (layers[i] == index)
			engram_error_set(err, ENGRAM_EINVAL,
					 "layer %lld is named twice",
					 (long long)wanted);
	if (err->status) {
		engram_error_fix(err, "`tables` lists the layers");
		engram_error_path(err, "layers[%zu]", at);
		return err->status;
	}
	layers[at] = index;
	return ENGRAM_OK;
}

/* Layer ids to indices into the generation. */
static enum engram_status choose_layers(const struct rpc_call *call,
					const struct generation *gen,
					struct lease_terms *terms,
					struct engram_error *err)
{
	json_t *array = json_object_get(call->params, "layers"), *item;
	enum engram_status status;
	size_t i;

	if (!array) {
		for (i = 0; i < gen->num_layers; i++)
			terms->layers[i] = (uint32_t)i;
		terms->num_layers = gen->num_layers;
		return ENGRAM_OK;
	}
	json_array_foreach(array, i, item)
	{
		status = add_layer(gen, item, i, terms->layers, err);
		if (status)
			return status;
	}
	terms->num_layers = (uint32_t)json_array_size(array);
	return ENGRAM_OK;
}

/* The one near the cores that the peer may run on; if it may run near several,
 * the one of them that fewest have. */
static uint32_t copy_for_peer(const struct generation *gen, pid_t pid)
{
	const uint64_t nodes = numa_of_process("", pid);
	uint32_t best = UINT32_MAX, node, copy;

	for (node = 0; node < ENGRAM_NODES; node++) {
		copy = gen->nearest[node];
		if (nodes >> node & 1 &&
		    (best == UINT32_MAX ||
		     gen->copy_leases[copy] < gen->copy_leases[best]))
			best = copy;
	}
	return best == UINT32_MAX ? 0 : best;
}

static uint32_t choose_copy(const struct rpc_call *call,
			    const struct generation *gen)
{
	const int64_t node = rpc_integer(call, "node", -1);

	if (gen->num_copies == 1)
		return 0;
	return node >= 0 ? gen->nearest[node]
			 : copy_for_peer(gen, call->client->peer.pid);
}

static json_t *view_attached(const struct lease *lease)
{
	json_t *array = json_array();
	uint32_t i;

	for (i = 0; array && i < lease->num_layers; i++) {
		const struct engram_shard *shard = &lease->layers[i].shard;
		const struct generation_layer *layer =
			&lease->gen->layers[lease->layers[i].index];

		if (json_array_append_new(
			    array,
			    json_pack("{s:i, s:i, s:I, s:I, s:I, s:I, s:I}",
				      "layer_id", (int)layer->layer_id, "fd",
				      (int)i + 1, "row_begin",
				      (json_int_t)shard->row_begin, "row_end",
				      (json_int_t)shard->row_end, "head_begin",
				      (json_int_t)shard->head_begin, "head_end",
				      (json_int_t)shard->head_end,
				      "local_heads",
				      (json_int_t)shard->local_heads))) {
			json_decref(array);
			return NULL;
		}
	}
	return array;
}

/*
 * Who has such a descriptor can spoil the rows of everybody who reads them,
 * or shrink the segment under them: it is for those who may unload the table
 * anyway.
 */
static enum engram_status check_writable(const struct rpc_call *call,
					 struct engram_error *err)
{
	enum engram_status status;

	status = rpc_check_access(call->client, RPC_CHANGE,
				  "attach a table writable", err);
	if (!status)
		return ENGRAM_OK;
	engram_error_fix(err, "add it to access.change of the configuration: "
			      "who can write to a table can spoil it for all; "
			      "or attach read-only");
	engram_error_path(err, "writable");
	return status;
}

static enum engram_status read_terms(const struct rpc_call *call,
				     const struct table *table,
				     struct lease_terms *terms,
				     struct engram_error *err)
{
	*terms = (struct lease_terms){
		.tp_rank = (uint32_t)rpc_integer(call, "tp_rank", 0),
		.tp_size = (uint32_t)rpc_integer(call, "tp_size", 1),
		.copy = choose_copy(call, table->current),
		.writable = rpc_boolean(call, "writable"),
	};
	return choose_layers(call, table->current, terms, err);
}

static json_t *view_lease_given(const struct rpc_call *call,
				const struct lease *lease)
{
	return json_pack("{s:I, s:s, s:I, s:o, s:o, s:b, s:o, s:{s:i}, s:o}",
			 "lease", (json_int_t)lease->id, "table",
			 lease->table->name, "generation",
			 (json_int_t)lease->gen->number, "boot_epoch",
			 view_hex(&call->server->page->boot_epoch, 1),
			 "content_id", view_hex(lease->gen->content_id, 2),
			 "writable", lease->writable, "node", view_node(lease),
			 "control", "fd", 0, "layers", view_attached(lease));
}

static enum engram_status answer(struct rpc_call *call,
				 const struct lease *lease,
				 struct engram_error *err)
{
	enum engram_status status;
	struct parcel *parcel;

	status = parcel_new(lease, call->server->control_fd, &parcel, err);
	if (status)
		return status;
	call->result = view_lease_given(call, lease);
	if (!call->result) {
		parcel_free(parcel);
		return rpc_no_memory(err);
	}
	call->fds = (struct conn_fds){.fds = parcel->fds,
				      .count = lease->num_layers + 1,
				      .release = parcel_free,
				      .hold = parcel};
	return ENGRAM_OK;
}

static void log_attached(const struct client *client, const struct lease *lease)
{
	/* Who could have spoiled a table is to be found in any log. */
	log_at(lease->writable ? LOG_INFO : LOG_DEBUG,
	       lease->writable ? "attached writable" : "attached",
	       LOG_U("connection", client->id), LOG_I("pid", client->peer.pid),
	       LOG_I("uid", client->peer.uid),
	       LOG_S("table", lease->table->name), LOG_U("lease", lease->id));
}

RPC_METHOD_DECL(method_attach)
{
	struct table *table = method_table(call, err);
	enum engram_status status;
	struct lease_terms terms;
	struct lease *lease;

	if (!table)
		return ENGRAM_ENOTFOUND;
	if (!call->id) /* nobody would receive the descriptors */
		return engram_error_set(err, ENGRAM_EINVAL,
					"attach needs an id");
	if (rpc_boolean(call, "writable") && check_writable(call, err))
		return ENGRAM_EPERM;
	FAILPOINT(attach_asked);
	status = check_ready(call, table, err);
	if (!status)
		status = read_terms(call, table, &terms, err);
	if (!status)
		status = lease_new(call->client, table, &terms, &lease, err);
	if (status)
		return status;
	FAILPOINT(attach_leased);
	status = answer(call, lease, err);
	if (status) {
		lease_end(lease);
		return status;
	}
	log_attached(call->client, lease);
	events_client(call->server, call->client, "attached");
	FAILPOINT(attach_answered);
	return ENGRAM_OK;
}

struct lease *method_lease(struct rpc_call *call, struct engram_error *err)
{
	uint64_t id = (uint64_t)rpc_integer(call, "lease", 0);
	struct lease *lease = lease_find(call->client, id);

	if (lease)
		return lease;
	engram_error_set(err, ENGRAM_ENOTFOUND,
			 "this connection has no lease %llu",
			 (unsigned long long)id);
	engram_error_fix(err, "`clients` lists the leases");
	engram_error_path(err, "lease");
	return NULL;
}

static enum engram_status check_parks(const struct table *table,
				      struct engram_error *err)
{
	const bool unloads = table->job && table->job->kind == JOB_UNLOAD;

	if (table->spec->config.reload.mode == RELOAD_IN_PLACE && !unloads)
		return ENGRAM_OK;
	engram_error_set(err, ENGRAM_EUNSUPPORTED,
			 "table \"%s\" is %s: its memory is not written anew",
			 table->name,
			 unloads ? "being unloaded"
				 : "not one of reload.mode \"in_place\"");
	engram_error_fix(err, "detach");
	return ENGRAM_EUNSUPPORTED;
}

RPC_METHOD_DECL(method_park)
{
	struct lease *lease = method_lease(call, err);
	enum engram_status status;

	if (!lease)
		return ENGRAM_ENOTFOUND;
	status = check_parks(lease->table, err);
	if (status)
		return status;
	FAILPOINT(park_asked);
	lease_park(lease);
	FAILPOINT(park_done);
	return ENGRAM_OK;
}

RPC_METHOD_DECL(method_detach)
{
	struct lease *lease = method_lease(call, err);

	if (!lease)
		return ENGRAM_ENOTFOUND;
	FAILPOINT(detach_asked);
	lease_end(lease);
	FAILPOINT(detach_done);
	events_client(call->server, call->client, "detached");
	return ENGRAM_OK;
}
