/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a checkpoint is only engramd knows, and it says so itself: this runs
 * `engramd --inspect` or `--write-manifest`, which need no engramd that runs
 * already.
 */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"
#include "commands.h"

#define WORDS_MAX 16

/* The directory of this program, with a slash; "" if it is not known. */
static void own_dir(char out[PATH_MAX])
{
	const ssize_t n = readlink("/proc/self/exe", out, PATH_MAX - 1);
	char *slash;

	out[n > 0 ? n : 0] = '\0';
	slash = strrchr(out, '/');
	out[slash ? slash + 1 - out : 0] = '\0';
}

/* Beside this program, as built and as installed, then in PATH: that of the
 * same version first.  Returns if there is none that runs. */
static void run_engramd(char *const *words)
{
	static const char *const places[] = {"engramd", "../sbin/engramd"};
	char dir[PATH_MAX], path[PATH_MAX + 32];
	size_t i;

	own_dir(dir);
	for (i = 0; *dir && i < sizeof(places) / sizeof(places[0]); i++) {
		snprintf(path, sizeof(path), "%s%s", dir, places[i]);
		execv(path, words);
		if (errno != ENOENT)
			return;
	}
	execvp("engramd", words);
}

/* Of this sidecar, "not reachable": it is not one of the answers. */
static enum cli_exit not_run(const struct cli *cli, int sys_errno)
{
	struct engram_error err;

	engram_error_set(&err, ENGRAM_EDISCONNECTED, "run engramd: %s",
			 strerror(sys_errno));
	engram_error_fix(&err, "install engramd beside engramctl or in PATH: "
			       "it reads the checkpoint");
	return cli_fail(cli, &err);
}

/* An option, if it was given. */
static void add_word(const char **words, const char *option, const char *value)
{
	size_t n = 0;

	while (words[n])
		n++;
	if (value) {
		words[n] = option;
		words[n + 1] = value;
	}
}

static enum cli_exit run_inspect(struct cli *cli)
{
	const char *tp_size = cli_option(cli, "--tp-size");
	const char *token_map = cli_option(cli, "--token-map");
	const char *config = cli_option(cli, "--config");
	const char *table = cli_option(cli, "--table");
	const char *words[WORDS_MAX] = {"engramd", cli->json ? "--json" : NULL};
	int64_t size;

	if (!config != !table || (!config && !cli->num_args))
		return cli_usage_error("give DIR, or --config FILE and "
				       "--table NAME, or all of them",
				       "inspect: nothing to inspect");
	if (!cli_integer(cli, "--tp-size", 1, 4096, 1, &size))
		return CLI_USAGE;
	add_word(words, "--inspect", cli->num_args ? cli->args[0] : NULL);
	add_word(words, "--config", config);
	add_word(words, "--table", table);
	add_word(words, "--tp-size", tp_size);
	add_word(words, "--token-map", token_map);
	/* exec changes none of them, whatever its type says. */
	run_engramd((char *const *)words);
	return not_run(cli, errno);
}

static const struct cli_option inspect_options[] = {
	{"--config", "FILE", "a configuration, for --table"},
	{"--table", "NAME", "as this table of it describes the checkpoint"},
	{"--tp-size", "N", "the shares of N ranks, too"},
	{"--token-map", "FILE", "the table's \"token_map\""},
	{0},
};

static enum cli_exit run_manifest(struct cli *cli)
{
	const bool check = !strcmp(cli->args[0], "check");
	const char *token_map = cli_option(cli, "--token-map");
	const char *config = cli_option(cli, "--config");
	const char *table = cli_option(cli, "--table");
	const char *words[WORDS_MAX] = {
		"engramd", check ? "--check-manifest" : "--write-manifest",
		cli->args[1]};

	if (!check && strcmp(cli->args[0], "write") != 0)
		return cli_usage_error("engramctl manifest write|check DIR",
				       "manifest: \"%s\" is neither",
				       cli->args[0]);
	if (!config != !table)
		return cli_usage_error("give both, or none",
				       "manifest: --config and --table go "
				       "together");
	add_word(words, "--config", config);
	add_word(words, "--table", table);
	add_word(words, "--token-map", token_map);
	run_engramd((char *const *)words);
	return not_run(cli, errno);
}

static const struct cli_option manifest_options[] = {
	{"--config", "FILE", "a configuration, for --table"},
	{"--table", "NAME", "as this table of it describes the checkpoint"},
	{"--token-map", "FILE", "the table's \"token_map\""},
	{0},
};

const struct cli_command cmd_manifest = {
	.name = "manifest",
	.usage = "write|check DIR [--config FILE --table NAME]\n"
		 "                         [--token-map FILE]",
	.summary = "write down what a checkpoint holds, or compare",
	.details = "\nReads all rows. What write leaves in the directory is "
		   "compared with each load and\nverify from then on. Exits "
		   "with 1 if check finds other bytes. Runs engramd; no\n"
		   "engramd needs to run.",
	.min_args = 2,
	.max_args = 2,
	.options = manifest_options,
	.run = run_manifest,
};

const struct cli_command cmd_inspect = {
	.name = "inspect",
	.usage = "[DIR] [--config FILE --table NAME] [--tp-size N]\n"
		 "                         [--token-map FILE]",
	.summary = "show what is in a checkpoint, without loading it",
	.details = "\nIts geometry, tensors and files, the memory it takes and "
		   "whether that is there now,\nand all that is wrong with it. "
		   "Exits with 1 if it can not be loaded. Runs engramd\n"
		   "--inspect; no engramd needs to run.",
	.min_args = 0,
	.max_args = 1,
	.options = inspect_options,
	.run = run_inspect,
};
