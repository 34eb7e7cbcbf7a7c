/* SPDX-License-Identifier: Apache-2.0 */
/* The map from raw to compressed token ids of a loaded table. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "commands.h"
#include "tokmap_file.h"

#define CLASSES_SHOWN 5	 /* the most merged ones */
#define MEMBERS_SHOWN 8	 /* of each */
#define DIFFS_SHOWN   10 /* the first ones */
#define ID_MAX	      (INT32_C(1) << 28)

struct tokmap {
	engram_table *table;
	struct engram_table_info info;
	int32_t pad_id;
	const int32_t *map; /* [len] */
	uint64_t len;
	bool identity;	  /* each id is its own, as of tables of raw ids */
	uint32_t *counts; /* [num_ids] raw ids of each compressed id */
	uint64_t num_ids; /* the largest compressed id, and one */
};

static enum cli_exit no_memory(const struct cli *cli)
{
	struct engram_error err;

	engram_error_set(&err, ENGRAM_ENOMEM, "no memory for the token map");
	return cli_fail(cli, &err);
}

static enum cli_exit count(struct cli *cli, struct tokmap *t)
{
	struct engram_error err;
	uint64_t i;

	t->identity = true;
	for (i = 0; i < t->len; i++) {
		t->identity = t->identity && (uint64_t)t->map[i] == i;
		if (t->map[i] < 0 || t->map[i] >= ID_MAX) {
			engram_error_set(&err, ENGRAM_EDAMAGED,
					 "table \"%s\": token %" PRIu64
					 " maps to %" PRId32,
					 t->info.name, i, t->map[i]);
			engram_error_fix(&err, "unload the table and load it "
					       "again");
			return cli_fail(cli, &err);
		}
		if ((uint64_t)t->map[i] >= t->num_ids)
			t->num_ids = (uint64_t)t->map[i] + 1;
	}
	t->counts = calloc(t->num_ids + 1, sizeof(*t->counts));
	if (!t->counts)
		return no_memory(cli);
	for (i = 0; i < t->len; i++)
		t->counts[t->map[i]]++;
	return CLI_OK;
}

static enum cli_exit tokmap_begin(struct cli *cli, struct tokmap *t)
{
	struct engram_hash_params params;
	enum engram_status status;

	status = cli_attach(cli, cli->args[0], -1, &t->table);
	if (!status)
		status = engram_table_info(t->table, &t->info);
	if (!status)
		status = engram_hash_params(t->table, &params);
	if (status)
		return cli_fail_last(cli);
	t->pad_id = params.pad_id;
	t->len = (uint64_t)params.token_map_len;
	t->map = params.token_map;
	return count(cli, t);
}

static void tokmap_end(struct tokmap *t)
{
	free(t->counts);
	engram_detach(t->table);
}

static json_t *head_json(const struct tokmap *t)
{
	return json_pack("{s:s, s:I, s:s, s:I}", "table", t->info.name,
			 "generation", (json_int_t)t->info.generation,
			 "content_id", t->info.content_id, "raw_ids",
			 (json_int_t)t->len);
}

/* ---- the summary ---- */

static uint64_t distinct(const struct tokmap *t)
{
	uint64_t i, n = 0;

	for (i = 0; i < t->num_ids; i++)
		n += t->counts[i] != 0;
	return n;
}

/* The compressed ids that most raw ids map to, at least two, best first. */
static size_t most_merged(const struct tokmap *t, uint64_t out[CLASSES_SHOWN])
{
	size_t n = 0, at;
	uint64_t i;

	for (i = 0; i < t->num_ids; i++) {
		if (t->counts[i] < 2)
			continue;
		for (at = n; at && t->counts[out[at - 1]] < t->counts[i]; at--)
			;
		if (at == CLASSES_SHOWN)
			continue;
		n += n < CLASSES_SHOWN;
		memmove(out + at + 1, out + at, (n - at - 1) * sizeof(*out));
		out[at] = i;
	}
	return n;
}

/* The first raw ids of a class. */
static size_t members(const struct tokmap *t, uint64_t id,
		      uint64_t out[MEMBERS_SHOWN])
{
	size_t n = 0;
	uint64_t i;

	for (i = 0; i < t->len && n < MEMBERS_SHOWN; i++)
		if ((uint64_t)t->map[i] == id)
			out[n++] = i;
	return n;
}

static json_t *class_json(const struct tokmap *t, uint64_t id)
{
	json_t *list = json_array();
	uint64_t raw[MEMBERS_SHOWN];
	size_t n = members(t, id, raw), i;

	for (i = 0; i < n; i++)
		json_array_append_new(list, json_integer((json_int_t)raw[i]));
	return json_pack("{s:I, s:I, s:o}", "compressed", (json_int_t)id,
			 "count", (json_int_t)t->counts[id], "first_raw", list);
}

static void class_text(const struct tokmap *t, uint64_t id)
{
	uint64_t raw[MEMBERS_SHOWN];
	size_t n = members(t, id, raw), i;

	printf("  %" PRIu64 ": %" PRIu32 " raw ids:", id, t->counts[id]);
	for (i = 0; i < n; i++)
		printf(" %" PRIu64, raw[i]);
	puts(n < t->counts[id] ? " ..." : "");
}

static enum cli_exit show_summary(struct cli *cli, const struct tokmap *t)
{
	uint64_t top[CLASSES_SHOWN + 1];
	size_t n = most_merged(t, top), i;
	json_t *out, *list;

	if (!cli->json) {
		printf("table           %s, generation %" PRIu64 "\n"
		       "raw ids         %" PRIu64 "\n"
		       "compressed ids  ",
		       t->info.name, t->info.generation, t->len);
		if (t->identity)
			puts("none: each raw id is its own");
		else
			printf("%" PRIu64 "\n", distinct(t));
		printf("pad id          %" PRId32 "%s\n", t->pad_id,
		       t->identity ? "" : " (compressed)");
		if (n)
			puts("most merged");
		for (i = 0; i < n; i++)
			class_text(t, top[i]);
		return CLI_OK;
	}
	list = json_array();
	for (i = 0; i < n; i++)
		json_array_append_new(list, class_json(t, top[i]));
	out = head_json(t);
	json_object_set_new(out, "compressed_ids",
			    json_integer((json_int_t)distinct(t)));
	json_object_set_new(out, "identity", json_boolean(t->identity));
	json_object_set_new(out, "pad_id", json_integer(t->pad_id));
	json_object_set_new(out, "merged", list);
	return cli_print_json(out);
}

/* ---- --id ---- */

static enum cli_exit show_ids(struct cli *cli, const struct tokmap *t,
			      const int64_t *ids, size_t n)
{
	struct engram_error err;
	json_t *list, *out;
	size_t i;

	for (i = 0; i < n; i++) {
		if ((uint64_t)ids[i] < t->len)
			continue;
		engram_error_set(&err, ENGRAM_EINVAL,
				 "table \"%s\": token %" PRId64
				 " is not in [0, %" PRIu64 ")",
				 t->info.name, ids[i], t->len);
		engram_error_fix(&err, "give raw token ids of the model");
		return cli_fail(cli, &err);
	}
	if (!cli->json) {
		for (i = 0; i < n; i++)
			printf("%" PRId64 " -> %" PRId32 "\n", ids[i],
			       t->map[ids[i]]);
		return CLI_OK;
	}
	list = json_array();
	for (i = 0; i < n; i++)
		json_array_append_new(
			list, json_pack("{s:I, s:i}", "raw", (json_int_t)ids[i],
					"compressed", (int)t->map[ids[i]]));
	out = head_json(t);
	json_object_set_new(out, "ids", list);
	return cli_print_json(out);
}

/* ---- --diff ---- */

static void show_difference(struct cli *cli, const struct tokmap *t,
			    const int64_t *saved, uint64_t raw, json_t *list)
{
	if (cli->json)
		json_array_append_new(list, json_pack("{s:I, s:i, s:I}", "raw",
						      (json_int_t)raw, "table",
						      (int)t->map[raw], "file",
						      (json_int_t)saved[raw]));
	else
		printf("%" PRIu64 ": table %" PRId32 ", file %" PRId64 "\n",
		       raw, t->map[raw], saved[raw]);
}

static void diff_text(const struct tokmap *t, const char *file, uint64_t len,
		      uint64_t differ)
{
	if (differ > DIFFS_SHOWN)
		puts("...");
	if (differ)
		printf("%" PRIu64 " entries differ\n", differ);
	if (len != t->len)
		printf("the table has %" PRIu64 " entries, %s has %" PRIu64
		       "\n",
		       t->len, file, len);
	else if (!differ)
		printf("the same %" PRIu64 " entries\n", len);
}

static enum cli_exit show_diff(struct cli *cli, const struct tokmap *t,
			       const char *file)
{
	uint64_t len, common, i, differ = 0;
	enum cli_exit code = CLI_OK;
	json_t *list = NULL, *out;
	struct engram_error err;
	int64_t *saved;

	if (tokmap_read(file, &saved, &len, &err))
		return cli_fail(cli, &err);
	if (cli->json)
		list = json_array();
	common = len < t->len ? len : t->len;
	for (i = 0; i < common; i++)
		if (saved[i] != t->map[i] && differ++ < DIFFS_SHOWN)
			show_difference(cli, t, saved, i, list);
	free(saved);
	if (cli->json) {
		out = head_json(t);
		json_object_set_new(out, "file_raw_ids",
				    json_integer((json_int_t)len));
		json_object_set_new(out, "equal",
				    json_boolean(!differ && len == t->len));
		json_object_set_new(out, "differ",
				    json_integer((json_int_t)differ));
		json_object_set_new(out, "first", list);
		code = cli_print_json(out);
	} else {
		diff_text(t, file, len, differ);
	}
	if (!code && (differ || len != t->len))
		code = CLI_FAILED;
	return code;
}

/* ---- --export ---- */

static enum cli_exit export_map(struct cli *cli, const struct tokmap *t,
				const char *file)
{
	struct engram_error err;
	json_t *out;

	if (tokmap_write(file, t->map, t->len, &err))
		return cli_fail(cli, &err);
	if (!cli->json) {
		printf("%s: %" PRIu64 " entries\n", file, t->len);
		return CLI_OK;
	}
	out = head_json(t);
	json_object_set_new(out, "file", json_string(file));
	return cli_print_json(out);
}

/* ---- the command ---- */

/* At most one of the three, and a name that can be written. */
static bool check_options(const struct cli *cli)
{
	const char *export = cli_option(cli, "--export");

	if (!!cli_option(cli, "--id") + !!cli_option(cli, "--diff") + !!export >
	    1) {
		cli_usage_error("give one of them",
				"tokmap: --id, --diff and --export exclude "
				"each other");
		return false;
	}
	if (!export || tokmap_writable_name(export))
		return true;
	cli_usage_error("end it in .json or .npy",
			"--export: \"%s\" has no known ending", export);
	return false;
}

static enum cli_exit run_tokmap(struct cli *cli)
{
	const char *diff = cli_option(cli, "--diff");
	const char *export = cli_option(cli, "--export");
	struct tokmap t = {0};
	int64_t *ids = NULL;
	enum cli_exit code;
	size_t n = 0;

	if (!check_options(cli))
		return CLI_USAGE;
	if (cli_option(cli, "--id") &&
	    !cli_integers(cli, "--id", 0, INT32_MAX, &ids, &n))
		return CLI_USAGE;
	code = tokmap_begin(cli, &t);
	if (!code && ids)
		code = show_ids(cli, &t, ids, n);
	else if (!code && diff)
		code = show_diff(cli, &t, diff);
	else if (!code && export)
		code = export_map(cli, &t, export);
	else if (!code)
		code = show_summary(cli, &t);
	tokmap_end(&t);
	free(ids);
	return code;
}

static const struct cli_option tokmap_options[] = {
	{"--id", "IDS", "what these raw token ids map to, as 1,2,3"},
	{"--diff", "FILE", "compare with a saved map, .json or .npy"},
	{"--export", "FILE", "write it, as .json or .npy"},
	{0},
};

const struct cli_command cmd_tokmap = {
	.name = "tokmap",
	.usage = "TABLE [--id IDS | --diff FILE | --export FILE]",
	.summary = "show the map from raw to compressed token ids",
	.details = "\nAlone: how many ids there are, and the compressed ids "
		   "that most raw ids map to.\n--diff shows the first "
		   "differences, and exits with 1 if there are any.",
	.min_args = 1,
	.max_args = 1,
	.options = tokmap_options,
	.run = run_tokmap,
};
