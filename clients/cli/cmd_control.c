/* SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "commands.h"

/* ---- health ---- */

static enum cli_exit unhealthy(struct cli *cli, const char *fmt, ...)
	ENGRAM_PRINTF(2, 3);
static enum cli_exit unhealthy(struct cli *cli, const char *fmt, ...)
{
	struct engram_error err;
	char text[256];
	va_list args;

	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	engram_error_set(&err, ENGRAM_ENOTREADY, "%s", text);
	return cli_fail(cli, &err);
}

static enum cli_exit health_live(struct cli *cli)
{
	json_t *result;

	if (cli->num_args > 1)
		return cli_usage_error("usage: engramctl health live",
				       "health live: \"%s\" is too much",
				       cli->args[1]);
	if (cli_call(cli, "ping", NULL, &result))
		return cli_fail_last(cli);
	json_decref(result);
	if (cli->json)
		return cli_print_json(json_pack("{s:b}", "live", 1));
	printf("live\n");
	return CLI_OK;
}

static const json_t *find_table(const json_t *tables, const char *name)
{
	const json_t *table;
	size_t i;

	json_array_foreach(tables, i, table)
	{
		if (!strcmp(cli_text(table, "name", ""), name))
			return table;
	}
	return NULL;
}

static enum cli_exit table_ready(struct cli *cli, const char *name,
				 const json_t *table)
{
	const char *state = cli_text(table, "state", "unknown");

	if (!table)
		return unhealthy(cli, "no table \"%s\"", name);
	if (strcmp(state, "ready") != 0)
		return unhealthy(cli, "table \"%s\" is %s", name, state);
	return CLI_OK;
}

static enum cli_exit health_ready(struct cli *cli)
{
	enum cli_exit code = CLI_OK;
	const json_t *tables, *table;
	json_t *result;
	size_t i;

	if (cli_call(cli, "tables", NULL, &result))
		return cli_fail_last(cli);
	tables = json_object_get(result, "tables");
	for (i = 1; i < cli->num_args && !code; i++)
		code = table_ready(cli, cli->args[i],
				   find_table(tables, cli->args[i]));
	if (cli->num_args == 1)
		for (i = 0; i < json_array_size(tables) && !code; i++) {
			table = json_array_get(tables, i);
			code = table_ready(cli, cli_text(table, "name", "?"),
					   table);
		}
	json_decref(result);
	if (code)
		return code;
	if (cli->json)
		return cli_print_json(json_pack("{s:b}", "ready", 1));
	printf("ready\n");
	return CLI_OK;
}

static enum cli_exit run_health(struct cli *cli)
{
	static const char *const words[] = {"live", "ready", NULL};
	const char *nearest;
	char fix[64];

	if (!strcmp(cli->args[0], "live"))
		return health_live(cli);
	if (!strcmp(cli->args[0], "ready"))
		return health_ready(cli);
	nearest = cli_nearest(cli->args[0], words);
	snprintf(fix, sizeof(fix), "did you mean \"%s\"?", nearest);
	return cli_usage_error(nearest ? fix : "use live or ready",
			       "health: unknown check \"%s\"", cli->args[0]);
}

/* ---- config ---- */

static enum cli_exit config_get(struct cli *cli)
{
	json_t *result, *config;

	if (cli_call(cli, "config.get", NULL, &result))
		return cli_fail_last(cli);
	config = json_incref(json_object_get(result, "config"));
	json_decref(result);
	return cli_print_json(config);
}

/* engramd takes relative checkpoints from the file's directory, which it can
 * not know here. */
static void resolve_checkpoints(json_t *config, const char *file)
{
	char *path = realpath(file, NULL);
	json_t *table;
	size_t i;

	if (!path)
		return;
	*strrchr(path, '/') = '\0';
	json_array_foreach(json_object_get(config, "tables"), i, table)
	{
		json_t *old = json_object_get(table, "checkpoint");

		if (json_is_string(old) && *json_string_value(old) != '/')
			json_object_set_new(
				table, "checkpoint",
				json_sprintf("%s/%s", path,
					     json_string_value(old)));
	}
	free(path);
}

static enum cli_exit config_validate(struct cli *cli)
{
	const char *file = cli->args[1];
	struct engram_error err;
	json_t *config, *result;
	json_error_t fault;

	config = json_load_file(file, JSON_REJECT_DUPLICATES, &fault);
	if (!config) {
		/* jansson says which file when it can not open it */
		if (fault.line > 0)
			engram_error_set(&err, ENGRAM_ECONFIG, "%s:%d: %s",
					 file, fault.line, fault.text);
		else
			engram_error_set(&err, ENGRAM_ECONFIG, "%s",
					 fault.text);
		engram_error_fix(&err, "name a configuration in JSON");
		return cli_fail(cli, &err);
	}
	resolve_checkpoints(config, file);
	if (cli_call(cli, "config.validate",
		     json_pack("{s:o}", "config", config), &result)) {
		err = *engram_last_error();
		engram_error_context(&err, "%s", file);
		return cli_fail(cli, &err);
	}
	if (cli->json)
		return cli_print_json(result);
	json_decref(result);
	printf("%s: valid\n", file);
	return CLI_OK;
}

static enum cli_exit run_config(struct cli *cli)
{
	static const char *const words[] = {"get", "validate", NULL};
	const char *nearest;
	char fix[64];

	if (!strcmp(cli->args[0], "get") && cli->num_args == 1)
		return config_get(cli);
	if (!strcmp(cli->args[0], "validate") && cli->num_args == 2)
		return config_validate(cli);
	nearest = cli_nearest(cli->args[0], words);
	if (!nearest || !strcmp(nearest, cli->args[0]))
		return cli_usage_error(
			"usage: engramctl config get | validate FILE",
			"config: \"%s\" with %zu arguments", cli->args[0],
			cli->num_args - 1);
	snprintf(fix, sizeof(fix), "did you mean \"%s\"?", nearest);
	return cli_usage_error(fix, "config: unknown word \"%s\"",
			       cli->args[0]);
}

/* ---- rpc ---- */

static enum cli_exit run_rpc(struct cli *cli)
{
	json_t *params = NULL, *result;
	json_error_t fault;

	if (cli->num_args == 2) {
		params = json_loads(cli->args[1], JSON_REJECT_DUPLICATES,
				    &fault);
		if (!json_is_object(params)) {
			json_decref(params);
			return cli_usage_error("give an object: '{\"table\": "
					       "\"demo\"}'",
					       "rpc: the parameters are not a "
					       "JSON object");
		}
	}
	if (cli_call(cli, cli->args[0], params, &result))
		return cli_fail_last(cli);
	return cli_print_json(result);
}

/* ---- events ---- */

static void print_overdue(const json_t *params)
{
	const json_t *holders = json_object_get(params, "holders"), *holder;
	char age[CLI_WORD];
	const char *name;
	size_t i;

	printf("table %s: generation %lld is still held after %s by",
	       cli_text(params, "table", "?"),
	       (long long)cli_int(params, "generation"),
	       cli_duration(age, cli_number(params, "superseded_seconds")));
	json_array_foreach(holders, i, holder)
	{
		name = cli_text(holder, "name", "");
		printf("%s pid %lld%s%s%s", i ? "," : "",
		       (long long)cli_int(holder, "pid"), *name ? " (" : "",
		       name, *name ? ")" : "");
	}
	putchar('\n');
}

static void print_event(const struct cli *cli, const char *text)
{
	json_t *event, *params;
	const char *method;

	if (cli->json) {
		printf("%s\n", text);
		return;
	}
	event = json_loads(text, 0, NULL);
	params = json_object_get(event, "params");
	method = cli_text(event, "method", "?");
	if (!strcmp(method, "event.table")) {
		printf("table %s: %s, generation %lld, %lld leases\n",
		       cli_text(params, "name", "?"),
		       cli_text(params, "state", "?"),
		       (long long)cli_int(params, "generation"),
		       (long long)cli_int(params, "leases"));
	} else if (!strcmp(method, "event.job")) {
		printf("job %lld: %s %s %s, %lld of %lld bytes\n",
		       (long long)cli_int(params, "job"),
		       cli_text(params, "kind", "?"),
		       cli_text(params, "table", "?"),
		       cli_text(params, "state", "?"),
		       (long long)cli_int(params, "bytes_done"),
		       (long long)cli_int(params, "bytes_total"));
	} else if (!strcmp(method, "event.client")) {
		printf("client %lld: %s\n",
		       (long long)cli_int(params, "connection"),
		       cli_text(params, "change", "?"));
	} else if (!strcmp(method, "event.overdue")) {
		print_overdue(params);
	} else {
		printf("%s\n", text);
	}
	json_decref(event);
}

static enum cli_exit run_events(struct cli *cli)
{
	int64_t count, seen;
	json_t *result;
	char *event;

	if (!cli_integer(cli, "--count", 1, INT64_MAX, INT64_MAX, &count))
		return CLI_USAGE;
	if (cli_call(cli, "events.subscribe", NULL, &result))
		return cli_fail_last(cli);
	json_decref(result);
	for (seen = 0; seen < count; seen++) {
		if (engram_next_event(cli->client, -1, &event))
			return cli_fail_last(cli);
		print_event(cli, event);
		engram_free(event);
		/* Whoever reads a pipe wants them as they come. */
		if (fflush(stdout))
			return CLI_FAILED;
	}
	return CLI_OK;
}

/* ---- the commands ---- */

const struct cli_command cmd_health = {
	.name = "health",
	.usage = "live | ready [TABLE...]",
	.summary = "for probes: does it answer, are its tables ready",
	.details = "\nlive: engramd greets and answers a ping.\n"
		   "ready: the named tables, or all that it knows, are ready.",
	.min_args = 1,
	.max_args = CLI_ARGS_MAX,
	.run = run_health,
};

const struct cli_command cmd_config = {
	.name = "config",
	.usage = "get | validate FILE",
	.summary = "show the configuration, or check one",
	.min_args = 1,
	.max_args = 2,
	.run = run_config,
};

const struct cli_command cmd_rpc = {
	.name = "rpc",
	.usage = "METHOD [PARAMS]",
	.summary = "call a method of the control protocol",
	.details = "\nPARAMS is a JSON object. \"rpc rpc.discover\" lists the "
		   "methods.",
	.min_args = 1,
	.max_args = 2,
	.run = run_rpc,
};

static const struct cli_option events_options[] = {
	{"--count", "N", "end after N events"},
	{0},
};

const struct cli_command cmd_events = {
	.name = "events",
	.usage = "[--count N]",
	.summary = "follow what happens, one line an event",
	.options = events_options,
	.run = run_events,
};
