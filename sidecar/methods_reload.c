/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "methods.h"
#include "views.h"

/* The table's object with another checkpoint. */
static enum engram_status other_checkpoint(const struct rpc_call *call,
					   const struct table *table,
					   struct table_spec **out,
					   struct engram_error *err)
{
	json_t *path = json_object_get(call->params, "checkpoint");
	struct config_table config = {0};
	enum engram_status status;
	json_t *object;

	*out = NULL;
	if (!path)
		return ENGRAM_OK;
	object = json_copy(table->spec->json);
	if (!object || json_object_set(object, "checkpoint", path)) {
		json_decref(object);
		return rpc_no_memory(err);
	}
	status = config_parse_table(object, "", NULL, ENGRAM_EINVAL, &config,
				    err);
	if (!status) {
		*out = table_spec_take(&config, object);
		if (!*out)
			status = rpc_no_memory(err);
	}
	config_table_free(&config);
	json_decref(object);
	return status;
}

RPC_METHOD_DECL(method_reload)
{
	struct table *table = method_table(call, err);
	struct reload_terms terms = {.hold = rpc_boolean(call, "hold"),
				     .force = rpc_boolean(call, "force")};
	enum engram_status status;
	struct job *job = NULL;

	if (!table)
		return ENGRAM_ENOTFOUND;
	status = method_stopping(call, err);
	if (!status)
		status = other_checkpoint(call, table, &terms.spec, err);
	if (status)
		return status;
	status = table_reload(table, &terms, &job, err);
	if (!status)
		return method_reply_job(call, job, 0, err);
	call->job = job;
	return status;
}

static enum engram_status reply_generation(struct rpc_call *call,
					   const struct table *table,
					   struct engram_error *err)
{
	const struct generation *gen = table->current;

	call->result =
		json_pack("{s:I, s:o}", "generation", (json_int_t)gen->number,
			  "content_id", view_hex(gen->content_id, 2));
	return call->result ? ENGRAM_OK : rpc_no_memory(err);
}

/* 32 hex digits, low word first, as view_hex writes them. */
static bool read_content_id(const char *text, uint64_t out[2])
{
	char word[17] = "";

	if (strlen(text) != 32 || strspn(text, "0123456789abcdef") != 32)
		return false;
	for (int i = 0; i < 2; i++) {
		memcpy(word, text + 16 * i, 16);
		out[i] = strtoull(word, NULL, 16);
	}
	return true;
}

RPC_METHOD_DECL(method_publish)
{
	struct table *table = method_table(call, err);
	const char *text = rpc_string(call, "content_id");
	uint64_t content_id[2];
	enum engram_status status;
	struct job *job = NULL;

	if (!table)
		return ENGRAM_ENOTFOUND;
	if (text && !read_content_id(text, content_id)) {
		engram_error_set(err, ENGRAM_EINVAL,
				 "\"%.40s\" is no content id", text);
		engram_error_fix(err, "give 32 hex digits, as `tables` shows "
				      "them");
		engram_error_path(err, "content_id");
		return ENGRAM_EINVAL;
	}
	status = method_stopping(call, err);
	if (!status)
		status = table_publish_staged(table, text ? content_id : NULL,
					      &job, err);
	if (!status)
		return reply_generation(call, table, err);
	if (status == ENGRAM_EBUSY)
		call->job = job;
	return status;
}

RPC_METHOD_DECL(method_discard)
{
	struct table *table = method_table(call, err);
	enum engram_status status;

	if (!table)
		return ENGRAM_ENOTFOUND;
	status = table_discard_staged(table, err);
	if (status)
		return status;
	call->result = json_object();
	return call->result ? ENGRAM_OK : rpc_no_memory(err);
}

RPC_METHOD_DECL(method_rollback)
{
	struct table *table = method_table(call, err);
	enum engram_status status;
	struct job *job = NULL;

	if (!table)
		return ENGRAM_ENOTFOUND;
	status = method_stopping(call, err);
	if (!status)
		status = table_rollback(table, &job, err);
	if (!status)
		return reply_generation(call, table, err);
	if (status == ENGRAM_EBUSY)
		call->job = job;
	return status;
}
