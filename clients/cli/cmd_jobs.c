/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"
#include "commands.h"

/* A path as the sidecar, which has another working directory, can open it. */
static json_t *absolute(const char *path)
{
	char *cwd;
	json_t *out;

	if (path[0] == '/')
		return json_string(path);
	cwd = getcwd(NULL, 0);
	out = json_sprintf("%s/%s", cwd ? cwd : "", path);
	free(cwd);
	return out;
}

/* The running job of a table, 0 if none. */
static int64_t running_job(struct cli *cli, const char *table, const char *kind)
{
	json_t *result, *job;
	int64_t id = 0;

	if (cli_call(cli, "tables", json_pack("{s:s}", "table", table),
		     &result))
		return 0;
	id = cli_int(json_array_get(json_object_get(result, "tables"), 0),
		     "job");
	json_decref(result);
	if (!id || cli_call(cli, "job.get",
			    json_pack("{s:I}", "job", (json_int_t)id), &job))
		return 0;
	if (strcmp(cli_text(job, "kind", ""), kind) != 0)
		id = 0;
	json_decref(job);
	return id;
}

/* What has come of the job; true if there are no figures to follow. */
static bool report_generation(const struct cli *cli, const json_t *job)
{
	const bool unchanged = json_is_true(json_object_get(job, "unchanged"));

	if (strcmp(cli_text(job, "kind", ""), "reload") != 0) {
		printf("%s", cli_text(job, "state", "?"));
		return false;
	}
	printf("%sgeneration %lld%s%s", unchanged ? "unchanged, " : "",
	       (long long)cli_int(job, "generation"),
	       !unchanged && cli_switch(cli, "--hold") ? " is held" : "",
	       unchanged ? "\n" : "");
	return unchanged;
}

static enum cli_exit report_done(struct cli *cli, json_t *job)
{
	char bytes[CLI_WORD], rate[CLI_WORD], age[CLI_WORD];
	double seconds = cli_number(job, "age_seconds");

	if (cli->json)
		return cli_print_json(json_incref(job));
	printf("%s %s: ", cli_text(job, "kind", "job"),
	       cli_text(job, "table", "?"));
	if (report_generation(cli, job))
		return CLI_OK;
	printf(", %s in %s", cli_bytes(bytes, cli_number(job, "bytes_done")),
	       cli_duration(age, seconds));
	/* of the whole; the job's own rate is that of its last phase */
	if (seconds > 0)
		printf(" (%s/s)",
		       cli_bytes(rate,
				 cli_number(job, "bytes_done") / seconds));
	putchar('\n');
	return CLI_OK;
}

/*
 * Somebody else has started the same.  A load, an unload, a verify are as good
 * as one's own: *result becomes that job.  A reload may have read the
 * checkpoint before it became what it is now, or on other terms: it is waited
 * for, and *result is NULL.
 */
static enum cli_exit join(struct cli *cli, const char *method, double seconds,
			  json_t **result)
{
	const struct engram_error err = *engram_last_error();
	const bool again = !strcmp(method, "reload");
	int64_t id = 0;
	enum cli_exit code;
	json_t *job;

	*result = NULL;
	if (!again || !cli_switch(cli, "--no-wait"))
		id = running_job(cli, cli->args[0], method);
	if (!id)
		return cli_fail(cli, &err);
	fprintf(stderr, "engramctl: job %lld does that already%s\n",
		(long long)id, again ? "; once more after it" : "");
	if (!again) {
		*result = json_pack("{s:I}", "job", (json_int_t)id);
		return CLI_OK;
	}
	code = cli_wait(cli, id, false, seconds, &job);
	json_decref(job);
	return code;
}

/* `params` stays the caller's. */
static enum cli_exit start(struct cli *cli, const char *method, json_t *params,
			   double seconds, json_t **result)
{
	enum engram_status status;
	enum cli_exit code;

	do {
		code = CLI_OK;
		status = cli_call(cli, method, json_incref(params), result);
		if (status == ENGRAM_EBUSY)
			code = join(cli, method, seconds, result);
		else if (status)
			code = cli_fail_last(cli);
	} while (!code && !*result);
	return code;
}

/* What load, reload, unload and verify have in common: start, then follow. */
static enum cli_exit run_job(struct cli *cli, const char *method,
			     json_t *params)
{
	const char *table = cli->args[0];
	json_t *result, *job;
	enum cli_exit code = CLI_USAGE;
	double seconds;
	int64_t id;

	if (cli_real(cli, "--progress", 0, 3600, 5, &seconds))
		code = start(cli, method, params, seconds, &result);
	json_decref(params);
	if (code)
		return code;
	id = cli_int(result, "job");
	if (!id || cli_switch(cli, "--no-wait")) {
		if (cli->json)
			return cli_print_json(result);
		json_decref(result);
		if (id)
			printf("%s %s: job %lld\n", method, table,
			       (long long)id);
		else
			printf("%s %s: nothing to do\n", method, table);
		return CLI_OK;
	}
	json_decref(result);
	code = cli_follow(cli, id, cli_switch(cli, "--cancel-on-interrupt"),
			  seconds, &job);
	if (!code)
		code = report_done(cli, job);
	json_decref(job);
	return code;
}

static enum cli_exit run_load(struct cli *cli)
{
	const char *checkpoint = cli_option(cli, "--checkpoint");
	const char *layout = cli_option(cli, "--layout");
	const char *more = cli_option(cli, "--params");
	json_error_t fault;
	json_t *params = NULL;

	if (more) {
		params = json_loads(more, JSON_REJECT_DUPLICATES, &fault);
		if (!json_is_object(params)) {
			json_decref(params);
			return cli_usage_error(
				"give the keys of a table as in engramd.json",
				"--params: not a JSON object");
		}
	} else {
		params = json_object();
	}
	json_object_set_new(params, "table", json_string(cli->args[0]));
	if (checkpoint)
		json_object_set_new(params, "checkpoint", absolute(checkpoint));
	if (layout)
		json_object_set_new(params, "layout", json_string(layout));
	return run_job(cli, "load", params);
}

static enum cli_exit run_reload(struct cli *cli)
{
	const char *checkpoint = cli_option(cli, "--checkpoint");
	json_t *params = json_pack("{s:s}", "table", cli->args[0]);

	if (checkpoint)
		json_object_set_new(params, "checkpoint", absolute(checkpoint));
	if (cli_switch(cli, "--hold"))
		json_object_set_new(params, "hold", json_true());
	if (cli_switch(cli, "--force"))
		json_object_set_new(params, "force", json_true());
	return run_job(cli, "reload", params);
}

static enum cli_exit run_unload(struct cli *cli)
{
	return run_job(cli, "unload",
		       json_pack("{s:s}", "table", cli->args[0]));
}

static enum cli_exit run_verify(struct cli *cli)
{
	return run_job(cli, "verify",
		       json_pack("{s:s}", "table", cli->args[0]));
}

static const char no_wait[] = "return as soon as the job has started";
static const char cancel[] = "Ctrl-C cancels the job instead of leaving it";
static const char progress[] = "between lines without a terminal (5)";

static const struct cli_option load_options[] = {
	{"--checkpoint", "DIR", "load from here, not as configured"},
	{"--layout", "LAYOUT", "packed or split"},
	{"--params", "JSON", "other keys of a table's configuration"},
	{"--no-wait", NULL, no_wait},
	{"--cancel-on-interrupt", NULL, cancel},
	{"--progress", "SECONDS", progress},
	{0},
};

static const struct cli_option reload_options[] = {
	{"--checkpoint", "DIR", "from here, not from where it is"},
	{"--hold", NULL, "lend it only when told to publish it"},
	{"--force", NULL, "even if the checkpoint is what it was"},
	{"--no-wait", NULL, no_wait},
	{"--cancel-on-interrupt", NULL, cancel},
	{"--progress", "SECONDS", progress},
	{0},
};

static const struct cli_option job_options[] = {
	{"--no-wait", NULL, no_wait},
	{"--cancel-on-interrupt", NULL, cancel},
	{"--progress", "SECONDS", progress},
	{0},
};

const struct cli_command cmd_load = {
	.name = "load",
	.usage = "TABLE [--checkpoint DIR] [--no-wait]",
	.summary = "load a table into memory",
	.details = "\nShows progress until the table is ready. Ctrl-C leaves "
		   "the job running.",
	.min_args = 1,
	.max_args = 1,
	.options = load_options,
	.run = run_load,
};

const struct cli_command cmd_reload = {
	.name = "reload",
	.usage = "TABLE [--checkpoint DIR] [--hold] [--force] [--no-wait]",
	.summary = "replace a table by what its checkpoint is now",
	.details = "\nClients keep the generation that they have, and change "
		   "over when it suits them.\nShows progress until the new one "
		   "is lent. Ctrl-C leaves the job running.\nA reload that "
		   "runs already is waited for, then this one is started.",
	.min_args = 1,
	.max_args = 1,
	.options = reload_options,
	.run = run_reload,
};

const struct cli_command cmd_unload = {
	.name = "unload",
	.usage = "TABLE [--no-wait]",
	.summary = "take a table out of memory",
	.details = "\nClients that are attached keep what they have mapped.",
	.min_args = 1,
	.max_args = 1,
	.options = job_options,
	.run = run_unload,
};

const struct cli_command cmd_verify = {
	.name = "verify",
	.usage = "TABLE [--no-wait]",
	.summary = "compare a table's rows with their checksums",
	.min_args = 1,
	.max_args = 1,
	.options = job_options,
	.run = run_verify,
};
