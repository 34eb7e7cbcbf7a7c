/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "cli.h"
#include "commands.h"

/* Percent of the layer, or of all layers, on huge pages; -1: not known. */
static int huge_percent(const json_t *layer)
{
	const json_t *huge = json_object_get(layer, "huge_bytes");
	const double bytes = cli_number(layer, "bytes");

	if (!json_is_number(huge) || bytes <= 0)
		return -1;
	return (int)(json_number_value(huge) / bytes * 100);
}

static int least_huge_percent(const json_t *layers)
{
	const json_t *layer;
	int least = -1, percent;
	size_t i;

	json_array_foreach(layers, i, layer)
	{
		percent = huge_percent(layer);
		if (percent < 0)
			return -1;
		if (!i || percent < least)
			least = percent;
	}
	return least;
}

/* Where huge pages are lacking, how many, and what would help. */
static void print_lacking(const json_t *table)
{
	const json_t *layers = json_object_get(table, "layers"), *layer;
	const char *advice = cli_text(table, "huge_advice", "");
	int least = least_huge_percent(layers);
	size_t i;

	if (least < 0 || least == 100)
		return;
	printf("%s: on huge pages:", cli_text(table, "name", "?"));
	json_array_foreach(layers, i, layer)
	{
		printf("%s layer %lld %d %%", i ? "," : "",
		       (long long)cli_int(layer, "layer_id"),
		       huge_percent(layer));
	}
	printf("\n%s%s%s", *advice ? "  for more: " : "", advice,
	       *advice ? "\n" : "");
}

/* Where a table is spread over nodes of memory, how. */
static void print_nodes(const json_t *table)
{
	const json_t *layers = json_object_get(table, "layers"), *layer;
	const json_t *nodes, *node;
	bool first = true;
	size_t i, j;

	json_array_foreach(layers, i, layer)
	{
		nodes = json_object_get(layer, "nodes");
		if (json_array_size(nodes) < 2)
			continue;
		if (first)
			printf("%s: on nodes:", cli_text(table, "name", "?"));
		printf("%s layer %lld", first ? "" : ",",
		       (long long)cli_int(layer, "layer_id"));
		first = false;
		json_array_foreach(nodes, j, node)
		{
			printf(" %lld: %.0f %%",
			       (long long)cli_int(node, "node"),
			       cli_number(node, "bytes") * 100 /
				       cli_number(layer, "bytes"));
		}
	}
	if (!first)
		putchar('\n');
}

/* Where there is a copy on each node: which. */
static void print_copies(const json_t *table)
{
	const json_t *layers = json_object_get(table, "layers");
	const json_t *copies =
		json_object_get(json_array_get(layers, 0), "copies");
	const json_t *copy;
	size_t i;

	if (!json_array_size(copies))
		return;
	printf("%s: a copy on each node:", cli_text(table, "name", "?"));
	json_array_foreach(copies, i, copy)
	{
		printf(" %lld", (long long)cli_int(copy, "node"));
	}
	putchar('\n');
}

/* Of a table, or of a running load: people expect it to be taken over. */
static void print_not_adopted(const char *name, const json_t *object)
{
	const char *why = cli_text(object, "not_adopted", "");

	if (*why)
		printf("%s: not taken over from the last engramd: %s\n", name,
		       why);
}

static void add_percent(struct cli_columns *c, int percent)
{
	if (percent < 0)
		cli_columns_add(c, "-");
	else
		cli_columns_add(c, "%d%%", percent);
}

static void print_tables(const json_t *tables)
{
	struct cli_columns *c = cli_columns_new(9);
	const json_t *table, *layers, *error;
	uint64_t rows;
	char bytes[CLI_WORD];
	size_t i, j;

	cli_columns_add(c, "TABLE");
	cli_columns_add(c, "STATE");
	cli_columns_add(c, "GENERATION");
	cli_columns_add(c, "LAYERS");
	cli_columns_add(c, "ROWS");
	cli_columns_add(c, "SIZE");
	cli_columns_add(c, "HUGE");
	cli_columns_add(c, "LEASES");
	cli_columns_add(c, "CONTENT");
	json_array_foreach(tables, i, table)
	{
		layers = json_object_get(table, "layers");
		rows = 0;
		for (j = 0; j < json_array_size(layers); j++)
			rows += (uint64_t)cli_int(json_array_get(layers, j),
						  "rows");
		cli_columns_add(c, "%s", cli_text(table, "name", "?"));
		cli_columns_add(c, "%s", cli_text(table, "state", "?"));
		cli_columns_add(c, "%lld",
				(long long)cli_int(table, "generation"));
		cli_columns_add(c, "%zu", json_array_size(layers));
		cli_columns_add(c, "%llu", (unsigned long long)rows);
		cli_columns_add(c, "%s",
				cli_bytes(bytes, cli_number(table, "bytes")));
		add_percent(c, least_huge_percent(layers));
		cli_columns_add(c, "%lld", (long long)cli_int(table, "leases"));
		cli_columns_add(c, "%s", cli_text(table, "content_id", "-"));
	}
	cli_columns_print(c);
	cli_print_generations(tables);
	json_array_foreach(tables, i, table)
	{
		error = json_object_get(table, "error");
		if (json_is_object(error))
			printf("%s: last load failed: %s\n",
			       cli_text(table, "name", "?"),
			       cli_text(error, "message", "?"));
		print_not_adopted(cli_text(table, "name", "?"), table);
		print_lacking(table);
		print_nodes(table);
		print_copies(table);
	}
}

static void print_jobs(const json_t *jobs)
{
	char done[CLI_WORD], total[CLI_WORD];
	const json_t *job;
	size_t i;

	json_array_foreach(jobs, i, job)
	{
		printf("job %lld: %s %s %s, %s of %s\n",
		       (long long)cli_int(job, "job"),
		       cli_text(job, "kind", "?"), cli_text(job, "table", "?"),
		       cli_text(job, "state", "?"),
		       cli_bytes(done, cli_number(job, "bytes_done")),
		       cli_bytes(total, cli_number(job, "bytes_total")));
		print_not_adopted(cli_text(job, "table", "?"), job);
	}
}

/* Where a client's choice changes: "uva, host from 768 rows". */
static void print_choices(const json_t *choices)
{
	const char *path, *before = NULL;
	const json_t *choice;
	size_t i;

	json_array_foreach(choices, i, choice)
	{
		path = cli_text(choice, "path", "?");
		if (!before)
			printf("%s", path);
		else if (strcmp(path, before))
			printf(", %s from %lld rows", path,
			       (long long)cli_int(choice, "rows"));
		before = path;
	}
	putchar('\n');
}

/* Of the rows that were looked for in clients' caches. */
static double percent(const json_t *gather, const char *what)
{
	return 100 * cli_number(gather, what) /
	       cli_number(gather, "cache_lookups");
}

/* An older engramd does not say. */
static void print_gather(const json_t *gather)
{
	const json_t *measured = json_object_get(gather, "measured"), *one;
	char bytes[CLI_WORD];
	size_t i;

	if (!json_is_object(gather))
		return;
	printf("gather       %lld threads%s, %lld rings of %s, %lld rows, "
	       "%.1f s of CPU\n",
	       (long long)cli_int(gather, "threads"),
	       json_is_true(json_object_get(gather, "asleep")) ? " asleep" : "",
	       (long long)cli_int(gather, "rings"),
	       cli_bytes(bytes, cli_number(gather, "ring_bytes")),
	       (long long)cli_int(gather, "rows"),
	       cli_number(gather, "cpu_seconds"));
	if (cli_int(gather, "fallback") || cli_int(gather, "failed"))
		printf("not gathered %lld rows that clients read themselves, "
		       "%lld that nobody did\n",
		       (long long)cli_int(gather, "fallback"),
		       (long long)cli_int(gather, "failed"));
	if (cli_int(gather, "cache_lookups"))
		printf("client cache %lld rows looked for, %.1f %% found, "
		       "%.1f %% of them twice in a batch\n",
		       (long long)cli_int(gather, "cache_lookups"),
		       percent(gather, "cache_hits"),
		       percent(gather, "repeats"));
	json_array_foreach(measured, i, one)
	{
		printf("auto         pid %lld: ",
		       (long long)cli_int(one, "pid"));
		print_choices(json_object_get(one, "choices"));
	}
}

/* Of memfds; an older engramd does not say. */
static void print_fd_store(const json_t *store)
{
	const json_t *max = json_object_get(store, "max");

	if (!json_is_object(store))
		return;
	printf(", %lld", (long long)cli_int(store, "descriptors"));
	if (json_is_integer(max))
		printf(" of %lld", (long long)json_integer_value(max));
	printf(" descriptors kept by the service manager");
}

static enum cli_exit run_status(struct cli *cli)
{
	char up[CLI_WORD], room[CLI_WORD], locked[CLI_WORD];
	const json_t *memory, *tables;
	json_t *status;

	if (cli_call(cli, "status", NULL, &status))
		return cli_fail_last(cli);
	if (cli->json)
		return cli_print_json(status);
	memory = json_object_get(status, "memory");
	tables = json_object_get(status, "tables");
	printf("instance     %s\n", cli_text(status, "instance", "?"));
	printf("sidecar      engramd %s, pid %lld, up %s\n",
	       engram_server_version(cli->client),
	       (long long)cli_int(status, "pid"),
	       cli_duration(up, cli_number(status, "uptime_seconds")));
	printf("boot epoch   %s\n", cli_text(status, "boot_epoch", "?"));
	printf("connections  %lld\n",
	       (long long)cli_int(status, "connections"));
	printf("memory       %s, %s locked", cli_text(memory, "backing", "?"),
	       cli_bytes(locked, cli_number(memory, "locked")));
	if (json_is_number(json_object_get(memory, "room")))
		printf(", %s free",
		       cli_bytes(room, cli_number(memory, "room")));
	print_fd_store(json_object_get(memory, "fd_store"));
	putchar('\n');
	print_gather(json_object_get(status, "gather"));
	if (json_array_size(tables)) {
		putchar('\n');
		print_tables(tables);
	}
	print_jobs(json_object_get(status, "jobs"));
	json_decref(status);
	return CLI_OK;
}

static enum cli_exit run_tables(struct cli *cli)
{
	json_t *result, *params = NULL;

	if (cli->num_args)
		params = json_pack("{s:s}", "table", cli->args[0]);
	if (cli_call(cli, "tables", params, &result))
		return cli_fail_last(cli);
	if (cli->json)
		return cli_print_json(result);
	print_tables(json_object_get(result, "tables"));
	json_decref(result);
	return CLI_OK;
}

static void add_leases(struct cli_columns *c, const json_t *leases)
{
	char text[256] = "-";
	size_t used = 0, i;
	const json_t *lease;
	char node[32];

	json_array_foreach(leases, i, lease)
	{
		*node = '\0';
		if (json_is_integer(json_object_get(lease, "node")))
			snprintf(node, sizeof(node), " node %lld",
				 (long long)cli_int(lease, "node"));
		used += (size_t)snprintf(
			text + used, sizeof(text) - used, "%s%s g%lld%s%s%s",
			i ? ", " : "", cli_text(lease, "table", "?"),
			(long long)cli_int(lease, "generation"), node,
			json_is_true(json_object_get(lease, "writable"))
				? " writable"
				: "",
			json_is_true(json_object_get(lease, "parked"))
				? " parked"
				: "");
		if (used >= sizeof(text))
			break;
	}
	cli_columns_add(c, "%s", text);
}

/* What engramd's threads read for it; an older engramd does not say. */
static void add_rings(struct cli_columns *c, const json_t *rings)
{
	const size_t n = json_array_size(rings);
	const json_t *ring;
	int64_t rows = 0;
	size_t i;

	json_array_foreach(rings, i, ring)
	{
		rows += cli_int(ring, "rows");
	}
	if (n)
		cli_columns_add(c, "%zu %s, %lld rows", n,
				n == 1 ? "ring" : "rings", (long long)rows);
	else
		cli_columns_add(c, "-");
}

static enum cli_exit run_clients(struct cli *cli)
{
	struct cli_columns *c;
	char age[CLI_WORD];
	const json_t *client;
	json_t *result;
	size_t i;

	if (cli_call(cli, "clients", NULL, &result))
		return cli_fail_last(cli);
	if (cli->json)
		return cli_print_json(result);
	c = cli_columns_new(8);
	cli_columns_add(c, "CONNECTION");
	cli_columns_add(c, "PID");
	cli_columns_add(c, "UID");
	cli_columns_add(c, "NAME");
	cli_columns_add(c, "AGE");
	cli_columns_add(c, "REQUESTS");
	cli_columns_add(c, "GATHERED");
	cli_columns_add(c, "LEASES");
	json_array_foreach(json_object_get(result, "clients"), i, client)
	{
		cli_columns_add(c, "%lld",
				(long long)cli_int(client, "connection"));
		cli_columns_add(c, "%lld", (long long)cli_int(client, "pid"));
		cli_columns_add(c, "%lld", (long long)cli_int(client, "uid"));
		cli_columns_add(c, "%s", cli_text(client, "name", "-"));
		cli_columns_add(
			c, "%s",
			cli_duration(age, cli_number(client, "age_seconds")));
		cli_columns_add(c, "%lld",
				(long long)cli_int(client, "requests"));
		add_rings(c, json_object_get(client, "rings"));
		add_leases(c, json_object_get(client, "leases"));
	}
	cli_columns_print(c);
	json_decref(result);
	return CLI_OK;
}

const struct cli_command cmd_status = {
	.name = "status",
	.usage = "",
	.summary = "show the sidecar, its memory, tables and jobs",
	.run = run_status,
};

const struct cli_command cmd_tables = {
	.name = "tables",
	.usage = "[TABLE]",
	.summary = "list the tables",
	.max_args = 1,
	.run = run_tables,
};

const struct cli_command cmd_clients = {
	.name = "clients",
	.usage = "",
	.summary = "list the connections and what they lease",
	.run = run_clients,
};
