/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "methods.h"
#include "views.h"

static enum engram_status no_table(const char *name, struct engram_error *err)
{
	engram_error_set(err, ENGRAM_ENOTFOUND, "there is no table \"%s\"",
			 name);
	engram_error_fix(err, "`tables` lists them");
	engram_error_path(err, "table");
	return ENGRAM_ENOTFOUND;
}

struct table *method_table(struct rpc_call *call, struct engram_error *err)
{
	const char *name = rpc_string(call, "table");
	struct table *table = tables_find(&call->server->tables, name);

	if (!table)
		no_table(name, err);
	return table;
}

RPC_METHOD_DECL(method_tables)
{
	const char *name = rpc_string(call, "table");
	json_t *array = json_array();
	struct table *table;
	bool found = !name;

	TAILQ_FOREACH(table, &call->server->tables.list, entry)
	{
		if (name && strcmp(table->name, name) != 0)
			continue;
		found = true;
		if (json_array_append_new(array, view_table(table))) {
			json_decref(array);
			return rpc_no_memory(err);
		}
	}
	if (!found) {
		json_decref(array);
		return no_table(name, err);
	}
	call->result = json_pack("{s:o}", "tables", array);
	return call->result ? ENGRAM_OK : rpc_no_memory(err);
}

/* ---- load, unload, verify ---- */

enum engram_status method_reply_job(struct rpc_call *call,
				    const struct job *job, uint64_t generation,
				    struct engram_error *err)
{
	if (job)
		call->result = json_pack("{s:I}", "job", (json_int_t)job->id);
	else if (generation)
		call->result = json_pack("{s:n, s:I}", "job", "generation",
					 (json_int_t)generation);
	else
		call->result = json_pack("{s:n}", "job");
	return call->result ? ENGRAM_OK : rpc_no_memory(err);
}

enum engram_status method_stopping(const struct rpc_call *call,
				   struct engram_error *err)
{
	if (!call->server->stopping)
		return ENGRAM_OK;
	engram_error_set(err, ENGRAM_EDRAINING, "the sidecar is stopping");
	engram_error_fix(err, "wait for the next one");
	return ENGRAM_EDRAINING;
}

/* A `load` of a table that is there brings nothing new, or differs. */
static enum engram_status check_known(struct rpc_call *call,
				      const struct table *table,
				      struct engram_error *err)
{
	const char *key;
	json_t *value;

	json_object_foreach(call->params, key, value)
	{
		if (strcmp(key, "table") == 0 ||
		    json_equal(value, json_object_get(table->spec->json, key)))
			continue;
		engram_error_set(err, ENGRAM_EEXIST,
				 table->configured
					 ? "table \"%s\" is configured: load "
					   "takes no \"%s\""
					 : "table \"%s\" is there with another "
					   "\"%s\"",
				 table->name, key);
		engram_error_fix(err, table->configured
					      ? "change the configuration, "
						"then reload it"
					      : "unload it first");
		engram_error_path(err, "%s", key);
		return ENGRAM_EEXIST;
	}
	return ENGRAM_OK;
}

/* One that failed and that nobody configured may be told afresh. */
static bool tells_afresh(const struct rpc_call *call, const struct table *table)
{
	return !table->configured && !table->job &&
	       table->state == ENGRAM_TABLE_FAILED &&
	       json_object_size(call->params) > 1;
}

static void forget_failed(struct table *table)
{
	struct job *none;

	table_unload(table, &none, NULL);
	table_settle(table);
}

/* The parameters are a table's object but for the key of its name. */
static enum engram_status add_table(struct rpc_call *call, struct table **table,
				    struct engram_error *err)
{
	json_t *name = json_object_get(call->params, "table");
	struct config_table config = {0};
	enum engram_status status;
	json_t *object;

	if (!json_object_get(call->params, "checkpoint")) {
		no_table(json_string_value(name), err);
		engram_error_fix(err, "give \"checkpoint\" to load a table "
				      "that is not configured");
		return ENGRAM_ENOTFOUND;
	}
	object = json_copy(call->params);
	if (!object || json_object_set(object, "name", name)) {
		json_decref(object);
		return rpc_no_memory(err);
	}
	json_object_del(object, "table");
	status = config_parse_table(object, "", NULL, ENGRAM_EINVAL, &config,
				    err);
	if (!status && *table)
		forget_failed(*table);
	if (!status)
		status = tables_add(&call->server->tables, &config, object,
				    table, err);
	config_table_free(&config);
	json_decref(object);
	return status;
}

RPC_METHOD_DECL(method_load)
{
	const char *name = rpc_string(call, "table");
	struct table *table = tables_find(&call->server->tables, name);
	enum engram_status status;
	struct job *job;

	status = method_stopping(call, err);
	if (!status)
		status = table && !tells_afresh(call, table)
				 ? check_known(call, table, err)
				 : add_table(call, &table, err);
	if (status)
		return status;
	status = table_load(table, &job, err);
	if (status) {
		call->job = job;
		if (!job)
			table_settle(table);
		return status;
	}
	return method_reply_job(
		call, job, table->current ? table->current->number : 0, err);
}

RPC_METHOD_DECL(method_unload)
{
	struct table *table = method_table(call, err);
	enum engram_status status;
	struct job *job;

	if (!table)
		return ENGRAM_ENOTFOUND;
	status = table_unload(table, &job, err);
	if (status) {
		call->job = job;
		return status;
	}
	if (!job)
		table_settle(table);
	return method_reply_job(call, job, 0, err);
}

RPC_METHOD_DECL(method_verify)
{
	struct table *table = method_table(call, err);
	enum engram_status status;
	struct job *job;

	if (!table)
		return ENGRAM_ENOTFOUND;
	status = method_stopping(call, err);
	if (!status)
		status = table_verify(table, &job, err);
	if (!status)
		return method_reply_job(call, job, 0, err);
	if (status == ENGRAM_EBUSY)
		call->job = job;
	return status;
}
