/* SPDX-License-Identifier: Apache-2.0 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "config.h"
#include "log.h"
#include "server.h"

static const char usage[] =
	"usage: engramd -c FILE [--check]\n"
	"\n"
	"Hold embedding tables in shared memory and lend them to local\n"
	"processes.  See engramd(8) and engramd.json(5).\n"
	"\n"
	"  -c, --config FILE   the configuration\n"
	"      --check         only check the configuration: exit 0 or 1\n"
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

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{"config", required_argument, NULL, 'c'},
		{"check", no_argument, NULL, 'k'},
		{"help", no_argument, NULL, 'h'},
		{"version", no_argument, NULL, 'V'},
		{0},
	};
	const char *file = NULL;
	int option, only_check = 0;

	while ((option = getopt_long(argc, argv, "c:hV", options, NULL)) !=
	       -1) {
		switch (option) {
		case 'c':
			file = optarg;
			break;
		case 'k':
			only_check = 1;
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
	if (!file)
		return complain("no configuration: give -c FILE");
	return only_check ? check(file) : serve(file);
}
