/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "engram_wire.h"
#include "json.h"
#include "log.h"
#include "rpc.h"
#include "views.h"

enum engram_status rpc_no_memory(struct engram_error *err)
{
	return engram_error_set(err, ENGRAM_ENOMEM, "no memory");
}

const char *rpc_type_name(enum rpc_type type)
{
	static const char *const names[] = {"string",  "integer",   "number",
					    "boolean", "integer[]", "object"};

	return names[type];
}

const char *rpc_string(const struct rpc_call *call, const char *name)
{
	return json_string_value(json_object_get(call->params, name));
}

int64_t rpc_integer(const struct rpc_call *call, const char *name, int64_t dflt)
{
	const json_t *value = json_object_get(call->params, name);

	return value ? json_integer_value(value) : dflt;
}

bool rpc_boolean(const struct rpc_call *call, const char *name)
{
	return json_is_true(json_object_get(call->params, name));
}

/* ---- parameters ---- */

static void check_items(struct json_view *v, const struct rpc_param *param)
{
	json_t *array = json_view_array(v, param->name, (size_t)param->min,
					(size_t)param->max);
	json_t *item;
	size_t i;

	json_array_foreach(array, i, item)
	{
		if (json_is_integer(item))
			continue;
		json_view_fail(v, param->name, "item %zu is not an integer", i);
		return;
	}
}

static void check_param(struct json_view *v, const struct rpc_param *param)
{
	if (param->required)
		json_view_require(v, param->name, param->summary);
	switch (param->type) {
	case RPC_STRING:
		json_view_string(v, param->name, NULL);
		break;
	case RPC_INTEGER:
		json_view_int(v, param->name, param->min, param->max,
			      param->min);
		break;
	case RPC_NUMBER:
		json_view_real(v, param->name, (double)param->min,
			       (double)param->max, (double)param->min);
		break;
	case RPC_BOOLEAN:
		json_view_bool(v, param->name, false);
		break;
	case RPC_INTEGERS:
		check_items(v, param);
		break;
	case RPC_OBJECT:
		json_view_object(v, param->name);
		break;
	}
}

static enum engram_status check_params(const struct rpc_method *method,
				       json_t *params, struct engram_error *err)
{
	const struct rpc_param *param;
	struct json_view view;

	json_view_begin(&view, params, "", NULL, ENGRAM_EINVAL, err);
	for (param = method->params; param->name; param++)
		check_param(&view, param);
	return json_view_end(&view);
}

/* ---- requests ---- */

static size_t count_index(const struct rpc_method *method)
{
	return method ? (size_t)(method - rpc_methods) : RPC_METHODS_MAX;
}

static void count_call(struct server *server, const struct rpc_method *method)
{
	server->rpc_counts.calls[count_index(method)]++;
}

/* A request of that method, or NULL, has failed. */
static void count_error(struct server *server, const struct rpc_method *method,
			enum engram_status status)
{
	server->rpc_counts.errors[count_index(method)][status]++;
}

static const struct rpc_method *find_method(const char *name,
					    struct engram_error *err)
{
	const char *names[RPC_METHODS_MAX + 1] = {NULL}, *nearest;
	const struct rpc_method *method;
	size_t n = 0;

	for (method = rpc_methods; method->name; method++) {
		if (strcmp(method->name, name) == 0)
			return method;
		if (n < RPC_METHODS_MAX)
			names[n++] = method->name;
	}
	engram_error_set(err, ENGRAM_EUNSUPPORTED, "there is no method \"%s\"",
			 name);
	engram_error_path(err, "method");
	nearest = json_nearest(name, names);
	if (nearest)
		engram_error_fix(err, "did you mean \"%s\"?", nearest);
	else
		engram_error_fix(err, "rpc.discover lists the methods");
	return NULL;
}

enum engram_status rpc_check_access(const struct client *client,
				    enum rpc_access access, const char *what,
				    struct engram_error *err)
{
	const struct config *config = client->server->config;
	bool change = access == RPC_CHANGE;

	if (access_allowed(change ? &config->change : &config->read,
			   &client->peer))
		return ENGRAM_OK;
	engram_error_set(err, ENGRAM_EPERM, "uid %u, gid %u may not %s",
			 (unsigned int)client->peer.uid,
			 (unsigned int)client->peer.gid, what);
	engram_error_fix(err, "add it to access.%s of the configuration",
			 change ? "change" : "read");
	return ENGRAM_EPERM;
}

static enum engram_status check_method(const struct client *client,
				       const struct rpc_method *method,
				       struct engram_error *err)
{
	char what[64];

	snprintf(what, sizeof(what), "call \"%s\"", method->name);
	return rpc_check_access(client, method->access, what, err);
}

/* Run a checked call and answer it. */
static void run(struct rpc_call *call, const struct rpc_method *method)
{
	struct engram_error err = {0};
	enum engram_status status = method->run(call, &err);

	if (status) {
		int code = ENGRAM_RPC_CODE(status);

		json_decref(call->result);
		count_error(call->server, method, status);
		if (status == ENGRAM_ENOMEM || status == ENGRAM_EINTERNAL)
			code = RPC_INTERNAL;
		if (call->id)
			rpc_reply_error(call->client, call->id, code, &err,
					call->job);
		return;
	}
	if (call->deferred || !call->id) {
		json_decref(call->result);
		if (call->fds.release)
			call->fds.release(call->fds.hold);
		return;
	}
	if (!call->result)
		call->result = json_object();
	rpc_send(call->client,
		 rpc_reply_object(call->id, "result", call->result),
		 &call->fds);
}

static void call_method(struct client *client, json_t *id, const char *name,
			json_t *params)
{
	struct rpc_call call = {.server = client->server,
				.client = client,
				.id = id,
				.params = params};
	struct engram_error err = {0};
	const struct rpc_method *method = find_method(name, &err);
	int code = 0;

	count_call(client->server, method);
	if (!method)
		code = RPC_METHOD;
	else if (check_method(client, method, &err))
		code = ENGRAM_RPC_CODE(ENGRAM_EPERM);
	else if (check_params(method, params, &err))
		code = RPC_PARAMS;
	if (!code) {
		run(&call, method);
		return;
	}
	count_error(client->server, method, err.status);
	if (id)
		rpc_reply_error(client, id, code, &err, NULL);
}

/* The envelope.  `*id` and `*params` are borrowed. */
static enum engram_status check_request(json_t *request, json_t **id,
					const char **method, json_t **params,
					struct engram_error *err)
{
	const char *version;
	struct json_view v;

	*id = json_object_get(request, "id");
	if (*id && !json_is_string(*id) && !json_is_number(*id) &&
	    !json_is_null(*id)) {
		*id = NULL;
		engram_error_set(err, ENGRAM_EPROTOCOL,
				 "id: a string, a number or null is expected");
		engram_error_path(err, "id");
		return ENGRAM_EPROTOCOL;
	}
	json_view_begin(&v, request, "", NULL, ENGRAM_EPROTOCOL, err);
	json_view_any(&v, "id");
	json_view_require(&v, "jsonrpc", "always \"2.0\"");
	version = json_view_string(&v, "jsonrpc", "");
	if (!json_view_result(&v) && strcmp(version, "2.0") != 0)
		json_view_fail(&v, "jsonrpc", "\"2.0\" is expected");
	json_view_require(&v, "method", "the name of a method");
	*method = json_view_string(&v, "method", "");
	*params = json_view_object(&v, "params");
	return json_view_end(&v);
}

/* Of a message that is no request; it gets an answer even without an id. */
static void refuse(struct client *client, json_t *id, int code,
		   const struct engram_error *err)
{
	count_call(client->server, NULL);
	count_error(client->server, NULL, err->status);
	rpc_reply_error(client, id, code, err, NULL);
}

static void handle(struct client *client, json_t *request)
{
	json_t *id, *params, *none = NULL;
	struct engram_error err = {0};
	const char *method;

	if (check_request(request, &id, &method, &params, &err)) {
		refuse(client, id, RPC_REQUEST, &err);
		return;
	}
	if (!params)
		params = none = json_object();
	if (params)
		call_method(client, id, method, params);
	else
		conn_abort(client->conn);
	json_decref(none);
}

void rpc_too_long(struct client *client)
{
	struct engram_error err;

	engram_error_set(&err, ENGRAM_EPROTOCOL,
			 "a line is longer than %u bytes", ENGRAM_LINE_MAX);
	engram_error_fix(&err, "send one JSON object a line");
	refuse(client, NULL, RPC_PARSE, &err);
	conn_finish(client->conn);
}

static bool blank(const char *text, size_t len)
{
	size_t i;

	for (i = 0; i < len; i++)
		if (!strchr(" \t\r", text[i]) || text[i] == '\0')
			return false;
	return true;
}

void rpc_line(struct client *client, const char *text, size_t len)
{
	struct json_source source = {0};
	struct engram_error err = {0};

	if (blank(text, len))
		return;
	client->requests++;
	engram_control_add64(&client->server->page->requests, 1);
	if (json_source_parse(&source, NULL, text, len, ENGRAM_EPROTOCOL,
			      &err)) {
		refuse(client, NULL,
		       err.status == ENGRAM_ENOMEM ? RPC_INTERNAL : RPC_PARSE,
		       &err);
		conn_finish(client->conn);
		return;
	}
	if (json_is_object(source.root)) {
		handle(client, source.root);
	} else {
		engram_error_set(&err, ENGRAM_EPROTOCOL,
				 json_is_array(source.root)
					 ? "batches are not supported"
					 : "a request is a JSON object");
		engram_error_fix(&err, "send one JSON object a line");
		refuse(client, NULL, RPC_REQUEST, &err);
		conn_finish(client->conn);
	}
	json_source_free(&source);
}
