/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "events.h"
#include "lease.h"
#include "log.h"
#include "methods.h"
#include "views.h"

static enum engram_status check_ready(struct rpc_call *call,
				      struct table *table,
				      struct engram_error *err)
{
	if (table->state == ENGRAM_TABLE_READY)
		return ENGRAM_OK;
	call->job = table->job;
	if (table->state == ENGRAM_TABLE_DRAINING) {
		engram_error_set(err, ENGRAM_EDRAINING,
				 "table \"%s\" is being unloaded", table->name);
		engram_error_fix(err, "load it again once it is absent");
		return ENGRAM_EDRAINING;
	}
	engram_error_set(err, ENGRAM_ENOTREADY, "table \"%s\" is %s%s%s",
			 table->name, engram_table_state_name(table->state),
			 table->failed ? ": " : "",
			 table->failed ? table->error.message : "");
	engram_error_fix(err, table->job ? "wait for the job"
					 : "load the table first");
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
					uint32_t *layers, uint32_t *count,
					struct engram_error *err)
{
	json_t *array = json_object_get(call->params, "layers"), *item;
	enum engram_status status;
	size_t i;

	if (!array) {
		for (i = 0; i < gen->num_layers; i++)
			layers[i] = (uint32_t)i;
		*count = gen->num_layers;
		return ENGRAM_OK;
	}
	json_array_foreach(array, i, item)
	{
		status = add_layer(gen, item, i, layers, err);
		if (status)
			return status;
	}
	*count = (uint32_t)json_array_size(array);
	return ENGRAM_OK;
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

/* What the message needs until it is sent: the descriptors stay open as long
 * as the generation is used, even if the lease ends before. */
struct parcel {
	struct generation *gen;
	int fds[];
};

static void parcel_free(void *arg)
{
	struct parcel *parcel = arg;

	generation_put(parcel->gen);
	free(parcel);
}

static struct parcel *parcel_new(const struct lease *lease, int control_fd)
{
	struct parcel *parcel =
		malloc(sizeof(*parcel) + (lease->num_layers + 1) * sizeof(int));
	uint32_t i;

	if (!parcel)
		return NULL;
	parcel->gen = lease->gen;
	generation_get(parcel->gen);
	parcel->fds[0] = control_fd;
	for (i = 0; i < lease->num_layers; i++)
		parcel->fds[i + 1] =
			lease->gen->layers[lease->layers[i].index].fd;
	return parcel;
}

RPC_METHOD_DECL(method_attach)
{
	struct table *table = method_table(call, err);
	uint32_t layers[ENGRAM_LAYERS_MAX] = {0}, count = 0;
	enum engram_status status;
	struct parcel *parcel;
	struct lease *lease;

	if (!table)
		return ENGRAM_ENOTFOUND;
	if (!call->id) /* nobody would receive the descriptors */
		return engram_error_set(err, ENGRAM_EINVAL,
					"attach needs an id");
	status = check_ready(call, table, err);
	if (!status)
		status = choose_layers(call, table->current, layers, &count,
				       err);
	if (!status)
		status = lease_new(call->client, table, layers, count,
				   (uint32_t)rpc_integer(call, "tp_rank", 0),
				   (uint32_t)rpc_integer(call, "tp_size", 1),
				   &lease, err);
	if (status)
		return status;
	parcel = parcel_new(lease, call->server->control_fd);
	call->result = json_pack(
		"{s:I, s:s, s:I, s:o, s:o, s:{s:i}, s:o}", "lease",
		(json_int_t)lease->id, "table", table->name, "generation",
		(json_int_t)lease->gen->number, "boot_epoch",
		view_hex(&call->server->page->boot_epoch, 1), "content_id",
		view_hex(lease->gen->content_id, 2), "control", "fd", 0,
		"layers", view_attached(lease));
	if (!parcel || !call->result) {
		if (parcel)
			parcel_free(parcel);
		lease_end(lease);
		return rpc_no_memory(err);
	}
	call->fds = (struct conn_fds){.fds = parcel->fds,
				      .count = lease->num_layers + 1,
				      .release = parcel_free,
				      .hold = parcel};
	log_debug("attached", LOG_U("connection", call->client->id),
		  LOG_S("table", table->name), LOG_U("lease", lease->id));
	events_client(call->server, call->client, "attached");
	return ENGRAM_OK;
}

RPC_METHOD_DECL(method_detach)
{
	uint64_t id = (uint64_t)rpc_integer(call, "lease", 0);
	struct lease *lease = lease_find(call->client, id);

	if (!lease) {
		engram_error_set(err, ENGRAM_ENOTFOUND,
				 "this connection has no lease %llu",
				 (unsigned long long)id);
		engram_error_fix(err, "`clients` lists the leases");
		engram_error_path(err, "lease");
		return ENGRAM_ENOTFOUND;
	}
	lease_end(lease);
	events_client(call->server, call->client, "detached");
	return ENGRAM_OK;
}
