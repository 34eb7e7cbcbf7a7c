/* SPDX-License-Identifier: Apache-2.0 */
/* Which generation of a table is lent, where more than one is in memory. */
#include <string.h>

#include "cli.h"
#include "commands.h"

static bool has_others(const json_t *generations)
{
	const json_t *gen;
	size_t i;

	json_array_foreach(generations, i, gen)
	{
		if (strcmp(cli_text(gen, "state", ""), "current") != 0)
			return true;
	}
	return false;
}

static void add_generations(struct cli_columns *c, const json_t *table,
			    const json_t *generations)
{
	char bytes[CLI_WORD], age[CLI_WORD];
	const json_t *gen, *seconds;
	size_t i;

	json_array_foreach(generations, i, gen)
	{
		seconds = json_object_get(gen, "superseded_seconds");
		cli_columns_add(c, "%s", cli_text(table, "name", "?"));
		cli_columns_add(c, "%lld",
				(long long)cli_int(gen, "generation"));
		cli_columns_add(c, "%s", cli_text(gen, "state", "?"));
		cli_columns_add(
			c, "%s",
			json_is_number(seconds)
				? cli_duration(age, json_number_value(seconds))
				: "-");
		cli_columns_add(c, "%s",
				cli_bytes(bytes, cli_number(gen, "bytes")));
		cli_columns_add(c, "%lld", (long long)cli_int(gen, "leases"));
		cli_columns_add(c, "%s", cli_text(gen, "content_id", "-"));
	}
}

void cli_print_generations(const json_t *tables)
{
	const json_t *table, *generations;
	struct cli_columns *c = NULL;
	size_t i;

	json_array_foreach(tables, i, table)
	{
		generations = json_object_get(table, "generations");
		if (!has_others(generations))
			continue;
		if (!c) {
			c = cli_columns_new(7);
			putchar('\n');
			cli_columns_add(c, "TABLE");
			cli_columns_add(c, "GENERATION");
			cli_columns_add(c, "STATE");
			cli_columns_add(c, "SUPERSEDED");
			cli_columns_add(c, "SIZE");
			cli_columns_add(c, "LEASES");
			cli_columns_add(c, "CONTENT");
		}
		add_generations(c, table, generations);
	}
	cli_columns_print(c);
}

/* The command's method, and what is lent then. */
static enum cli_exit lend(struct cli *cli, json_t *params)
{
	const char *method = cli->command->name;
	json_t *result;

	if (cli_call(cli, method, params, &result))
		return cli_fail_last(cli);
	if (cli->json)
		return cli_print_json(result);
	printf("%s %s: generation %lld, content %s\n", method, cli->args[0],
	       (long long)cli_int(result, "generation"),
	       cli_text(result, "content_id", "?"));
	json_decref(result);
	return CLI_OK;
}

static enum cli_exit run_publish(struct cli *cli)
{
	const char *content = cli_option(cli, "--content-id");
	json_t *params = json_pack("{s:s}", "table", cli->args[0]);

	if (content)
		json_object_set_new(params, "content_id", json_string(content));
	return lend(cli, params);
}

static enum cli_exit run_rollback(struct cli *cli)
{
	return lend(cli, json_pack("{s:s}", "table", cli->args[0]));
}

static enum cli_exit run_discard(struct cli *cli)
{
	json_t *result;

	if (cli_call(cli, "discard", json_pack("{s:s}", "table", cli->args[0]),
		     &result))
		return cli_fail_last(cli);
	if (cli->json)
		return cli_print_json(result);
	printf("discard %s: done\n", cli->args[0]);
	json_decref(result);
	return CLI_OK;
}

static const struct cli_option publish_options[] = {
	{"--content-id", "ID", "only if that is its content"},
	{0},
};

const struct cli_command cmd_publish = {
	.name = "publish",
	.usage = "TABLE [--content-id ID]",
	.summary = "lend what \"reload --hold\" has built",
	.min_args = 1,
	.max_args = 1,
	.options = publish_options,
	.run = run_publish,
};

const struct cli_command cmd_discard = {
	.name = "discard",
	.usage = "TABLE",
	.summary = "free what \"reload --hold\" has built",
	.min_args = 1,
	.max_args = 1,
	.run = run_discard,
};

const struct cli_command cmd_rollback = {
	.name = "rollback",
	.usage = "TABLE",
	.summary = "lend the generation before again",
	.details = "\nIt is there as long as somebody has it leased, and for "
		   "reload.retain_seconds.",
	.min_args = 1,
	.max_args = 1,
	.run = run_rollback,
};
