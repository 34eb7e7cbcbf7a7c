/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engram_wire.h"
#include "events.h"
#include "json.h"
#include "log.h"
#include "methods.h"
#include "views.h"

/* ENGRAM_ENOMEM unless there is a result. */
static enum engram_status finish(struct rpc_call *call, json_t *result,
				 struct engram_error *err)
{
	call->result = result;
	return result ? ENGRAM_OK : rpc_no_memory(err);
}

RPC_METHOD_DECL(method_ping)
{
	return finish(call, json_object(), err);
}

RPC_METHOD_DECL(method_version)
{
	return finish(call, view_hello(call->server), err);
}

static json_t *discover_params(const struct rpc_method *method)
{
	const struct rpc_param *param;
	json_t *array = json_array();

	for (param = method->params; array && param->name; param++)
		if (json_array_append_new(
			    array, json_pack("{s:s, s:s, s:b, s:s}", "name",
					     param->name, "type",
					     rpc_type_name(param->type),
					     "required", param->required,
					     "summary", param->summary))) {
			json_decref(array);
			return NULL;
		}
	return array;
}

static json_t *discover_methods(void)
{
	const struct rpc_method *method;
	json_t *array = json_array();

	for (method = rpc_methods; array && method->name; method++)
		if (json_array_append_new(
			    array,
			    json_pack("{s:s, s:s, s:s, s:o}", "name",
				      method->name, "summary", method->summary,
				      "access",
				      method->access == RPC_READ ? "read"
								 : "change",
				      "params", discover_params(method)))) {
			json_decref(array);
			return NULL;
		}
	return array;
}

static json_t *discover_errors(void)
{
	json_t *array = json_array();
	int i;

	for (i = 1; array && i < ENGRAM_STATUS_COUNT; i++) {
		enum engram_status status = (enum engram_status)i;

		if (json_array_append_new(
			    array,
			    json_pack("{s:s, s:i, s:s}", "name",
				      engram_status_name(status), "code",
				      ENGRAM_RPC_CODE(status), "sentence",
				      engram_status_sentence(status)))) {
			json_decref(array);
			return NULL;
		}
	}
	return array;
}

RPC_METHOD_DECL(method_discover)
{
	return finish(call,
		      json_pack("{s:o, s:o}", "methods", discover_methods(),
				"errors", discover_errors()),
		      err);
}

RPC_METHOD_DECL(method_status)
{
	return finish(call, view_status(call->server), err);
}

RPC_METHOD_DECL(method_clients)
{
	json_t *array = json_array();
	const struct client *client;

	TAILQ_FOREACH(client, &call->server->clients, entry)
	if (json_array_append_new(array, view_client(client))) {
		json_decref(array);
		return rpc_no_memory(err);
	}
	return finish(call, json_pack("{s:o}", "clients", array), err);
}

/* A name is shown on people's terminals, which obey U+0000..1F and
 * U+007F..9F. */
static bool has_control(const char *utf8)
{
	const unsigned char *s = (const unsigned char *)utf8;

	for (; *s; s++)
		if (*s < 0x20 || *s == 0x7f || (*s == 0xc2 && s[1] < 0xa0))
			return true;
	return false;
}

RPC_METHOD_DECL(method_client_name)
{
	const char *name = rpc_string(call, "name");
	size_t len = strlen(name);

	if (len == 0 || len >= sizeof(call->client->name)) {
		engram_error_set(err, ENGRAM_EINVAL,
				 "name: 1 to %zu bytes are allowed, not %zu",
				 sizeof(call->client->name) - 1, len);
		engram_error_path(err, "name");
		return ENGRAM_EINVAL;
	}
	if (has_control(name)) {
		engram_error_set(err, ENGRAM_EINVAL,
				 "name: control characters are not allowed");
		engram_error_path(err, "name");
		return ENGRAM_EINVAL;
	}
	memcpy(call->client->name, name, len + 1);
	return ENGRAM_OK;
}

RPC_METHOD_DECL(method_subscribe)
{
	/* The answer first, then the state. */
	rpc_reply(call->client, call->id, json_object());
	call->deferred = true;
	(void)err;
	if (call->client->subscribed)
		return ENGRAM_OK;
	call->client->subscribed = true;
	events_snapshot(call->client);
	return ENGRAM_OK;
}

RPC_METHOD_DECL(method_unsubscribe)
{
	(void)err;
	call->client->subscribed = false;
	return ENGRAM_OK;
}

RPC_METHOD_DECL(method_config_get)
{
	return finish(call,
		      json_pack("{s:O}", "config", call->server->config->json),
		      err);
}

RPC_METHOD_DECL(method_config_validate)
{
	json_t *given = json_object_get(call->params, "config");
	struct config *config;
	enum engram_status status;
	size_t len;
	char *text = rpc_text(given, &len);

	if (!text)
		return rpc_no_memory(err);
	status = config_parse(NULL, text, len, &config, err);
	free(text);
	if (status)
		return status;
	config_free(config);
	return finish(call, json_pack("{s:b}", "valid", 1), err);
}

RPC_METHOD_DECL(method_config_reload)
{
	return server_reload(call->server, err);
}

RPC_METHOD_DECL(method_log_set_level)
{
	const char *level = rpc_string(call, "level"), *nearest;
	enum log_level previous = log_get_level();
	int i;

	for (i = 0; log_level_names[i]; i++)
		if (strcmp(log_level_names[i], level) == 0)
			break;
	if (!log_level_names[i]) {
		engram_error_set(err, ENGRAM_EINVAL,
				 "level: there is no level \"%s\"", level);
		engram_error_path(err, "level");
		nearest = json_nearest(level, log_level_names);
		if (nearest)
			engram_error_fix(err, "did you mean \"%s\"?", nearest);
		else
			engram_error_fix(err, "use error, warn, info or debug");
		return ENGRAM_EINVAL;
	}
	log_set_level((enum log_level)i);
	return finish(call,
		      json_pack("{s:s, s:s}", "level", log_level_names[i],
				"previous", log_level_names[previous]),
		      err);
}

RPC_METHOD_DECL(method_shutdown)
{
	struct tables *tables = &call->server->tables;
	bool keep = rpc_boolean(call, "keep");

	if (keep && fd_store_check(&call->server->fd_store, err)) {
		engram_error_path(err, "params.keep");
		return ENGRAM_EUNSUPPORTED;
	}
	log_info("shutdown requested", LOG_I("pid", call->client->peer.pid),
		 LOG_S("keep", keep ? "yes" : "no"));
	tables->keep = keep;
	rpc_reply(call->client, call->id, json_object());
	call->deferred = true;
	server_stop(call->server);
	return ENGRAM_OK;
}
