/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "config.h"
#include "inspect.h"
#include "log.h"
#include "manifest.h"
#include "server.h"

static const char usage[] =
	"usage: engramd -c FILE [--check]\n"
	"       engramd --inspect DIR [--json] [--tp-size N] [--token-map "
	"FILE]\n"
	"       engramd -c FILE --table NAME [--inspect DIR] [--json] ...\n"
	"       engramd --write-manifest DIR | --check-manifest DIR\n"
	"               [-c FILE --table NAME] [--token-map FILE]\n"
	"\n"
	"Hold embedding tables in shared memory and lend them to local\n"
	"processes.  See engramd(8) and engramd.json(5).\n"
	"\n"
	"  -c, --config FILE   the configuration\n"
	"      --check         only check the configuration: exit 0 or 1\n"
	"      --inspect DIR   only show what is in a checkpoint, what memory "
	"it\n"
	"                      takes and what is wrong with it: exit 0 or 1\n"
	"      --table NAME    that, as this table of the configuration; of "
	"its\n"
	"                      own checkpoint without --inspect\n"
	"      --json          that as JSON\n"
	"      --tp-size N     that with the shares of N ranks\n"
	"      --token-map FILE  the table's \"token_map\"\n"
	"      --write-manifest DIR  read all of a checkpoint, and write down "
	"what\n"
	"                      it holds: loads are compared with that\n"
	"      --check-manifest DIR  only read it, and compare\n"
	"  -h, --help          this text\n"
	"  -V, --version       the version\n"
	"\n"
	"Signals: SIGHUP reads the configuration again, SIGTERM and SIGINT\n"
	"stop; a second one stops at once.\n";

enum { EXIT_USAGE = 2 };

static int complain(const char *text)
{
	fprintf(stderr, "engramd: %s\nTry 'engramd --help'.\n", text);
	return EXIT_USAGE;
}

static void print_error(const struct engram_error *err)
{
	fprintf(stderr, "engramd: %s\n", err->message);
	if (err->fix[0])
		fprintf(stderr, "  fix: %s\n", err->fix);
}

static int read_config(const char *file, struct config **config)
{
	struct engram_error err;

	if (config_read(file, config, &err) == ENGRAM_OK)
		return EXIT_SUCCESS;
	print_error(&err);
	return EXIT_FAILURE;
}

static int check(const char *file)
{
	struct config *config;

	if (read_config(file, &config))
		return EXIT_FAILURE;
	printf("%s: ok\n", file);
	config_free(config);
	return EXIT_SUCCESS;
}

static int serve(const char *file)
{
	struct config *config;

	if (read_config(file, &config))
		return EXIT_FAILURE;
	log_set_level(config->log_level);
	log_set_format(config->log_format);
	/* Others get what the modes of segments and socket say, no more. */
	umask(0027);
	return server_run(file, config);
}

struct arguments {
	const char *file;
	const char *table; /* to inspect, or for a manifest */
	bool only_check;
	bool inspects; /* some option of --inspect */
	struct inspect_options inspect;
	struct manifest_command manifest; /* without `dir` it is none */
};

static bool take_size(const char *text, uint32_t *out)
{
	char *end;
	unsigned long size;

	errno = 0;
	size = strtoul(text, &end, 10);
	if (*text < '0' || *text > '9' || *end || errno || !size || size > 4096)
		return false;
	*out = (uint32_t)size;
	return true;
}

static const struct config_table *find_table(const struct config *config,
					     const char *name)
{
	size_t i;

	for (i = 0; i < config->num_tables; i++)
		if (!strcmp(config->tables[i].name, name))
			return &config->tables[i];
	return NULL;
}

static int write_manifest(const struct arguments *a,
			  const struct config *config,
			  const struct config_table *table)
{
	const struct loader_options usual = {.threads = 0};
	struct manifest_command command = a->manifest;

	command.table = table;
	command.token_map = a->inspect.token_map;
	return manifest_run(&command, config ? &config->loader : &usual);
}

static int run_table(const struct arguments *a)
{
	struct inspect_options options = a->inspect;
	struct config *config;
	int code = read_config(a->file, &config);

	if (code)
		return code;
	options.table = find_table(config, a->table);
	if (options.table && a->manifest.dir) {
		code = write_manifest(a, config, options.table);
	} else if (options.table) {
		code = inspect_run(&options);
	} else {
		fprintf(stderr,
			"engramd: %s: there is no table \"%s\"\n"
			"  fix: give the \"name\" of one of its \"tables\"\n",
			a->file, a->table);
		code = EXIT_FAILURE;
	}
	config_free(config);
	return code;
}

/* The options together; EXIT_SUCCESS, or the exit code of a mistake. */
static int check_arguments(const struct arguments *a)
{
	if (a->table && !a->file)
		return complain("--table goes with -c FILE");
	if (a->inspect.dir && (a->only_check || (a->file && !a->table)))
		return complain("--inspect needs no configuration: leave -c "
				"and --check out, or add --table NAME");
	if (a->table && a->only_check)
		return complain("--table does not go with --check");
	if (a->manifest.dir &&
	    (a->inspect.dir || a->inspect.json || a->inspect.tp_size ||
	     a->only_check || (a->file && !a->table)))
		return complain("--write-manifest and --check-manifest go with "
				"-c FILE --table NAME and --token-map only");
	if (a->inspects && !a->inspect.dir && !a->table && !a->manifest.dir)
		return complain("--json, --tp-size and --token-map go with "
				"--inspect DIR or --table NAME");
	if (!a->inspect.dir && !a->file && !a->manifest.dir)
		return complain("no configuration: give -c FILE");
	return EXIT_SUCCESS;
}

static int run(const struct arguments *a)
{
	int code = check_arguments(a);

	if (code)
		return code;
	if (a->table)
		return run_table(a);
	if (a->manifest.dir)
		return write_manifest(a, NULL, NULL);
	if (a->inspect.dir)
		return inspect_run(&a->inspect);
	return a->only_check ? check(a->file) : serve(a->file);
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{"config", required_argument, NULL, 'c'},
		{"check", no_argument, NULL, 'k'},
		{"inspect", required_argument, NULL, 'i'},
		{"write-manifest", required_argument, NULL, 'w'},
		{"check-manifest", required_argument, NULL, 'W'},
		{"table", required_argument, NULL, 'n'},
		{"json", no_argument, NULL, 'j'},
		{"tp-size", required_argument, NULL, 't'},
		{"token-map", required_argument, NULL, 'm'},
		{"help", no_argument, NULL, 'h'},
		{"version", no_argument, NULL, 'V'},
		{0},
	};
	struct arguments a = {0};
	int option;

	while ((option = getopt_long(argc, argv, "c:hV", options, NULL)) !=
	       -1) {
		a.inspects |= option == 'j' || option == 't' || option == 'm';
		switch (option) {
		case 'c':
			a.file = optarg;
			break;
		case 'k':
			a.only_check = true;
			break;
		case 'i':
			a.inspect.dir = optarg;
			break;
		case 'w':
		case 'W':
			a.manifest.dir = optarg;
			a.manifest.check = option == 'W';
			break;
		case 'n':
			a.table = optarg;
			break;
		case 'j':
			a.inspect.json = true;
			break;
		case 't':
			if (!take_size(optarg, &a.inspect.tp_size))
				return complain("--tp-size: give a number "
						"from 1 to 4096");
			break;
		case 'm':
			a.inspect.token_map = optarg;
			break;
		case 'h':
			fputs(usage, stdout);
			return EXIT_SUCCESS;
		case 'V':
			puts("engramd " ENGRAM_VERSION_STRING);
			return EXIT_SUCCESS;
		default:
			fputs("Try 'engramd --help'.\n", stderr);
			return EXIT_USAGE;
		}
	}
	if (optind < argc)
		return complain("there are no arguments but options");
	return run(&a);
}
