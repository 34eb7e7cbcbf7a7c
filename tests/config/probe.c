/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Read a configuration and print either what was understood or the error
 * with all of its fields.
 *	config_probe FILE	exit 0 or 1
 */
#include <stdio.h>

#include "config.h"

static void print_access(const char *what, const struct config_access *a)
{
	size_t i;

	printf("access.%s: %s uids", what, a->anyone ? "anyone" : "listed");
	for (i = 0; i < a->num_uids; i++)
		printf(" %u", a->uids[i]);
	printf(" gids");
	for (i = 0; i < a->num_gids; i++)
		printf(" %u", a->gids[i]);
	putchar('\n');
}

static void print_config(const struct config *c)
{
	size_t i;

	printf("instance: %s\nsocket: %s %04o %s\n", c->instance, c->socket,
	       c->socket_mode, c->socket_group ? c->socket_group : "-");
	print_access("read", &c->read);
	print_access("change", &c->change);
	if (c->metrics.listen || c->metrics.path)
		printf("metrics: %s %s\n",
		       c->metrics.listen ? c->metrics.listen : "-",
		       c->metrics.path ? c->metrics.path : "-");
	for (i = 0; i < c->num_tables; i++)
		printf("table: %s %s\n", c->tables[i].name,
		       c->tables[i].checkpoint);
}

static void print_error(const struct engram_error *err)
{
	printf("status: %s\npath: %s\nmessage: %s\nfix: %s\n",
	       engram_status_name(err->status), err->path, err->message,
	       err->fix);
}

int main(int argc, char **argv)
{
	struct engram_error err = {0};
	struct config *config;

	if (argc != 2) {
		fputs("usage: config_probe FILE\n", stderr);
		return 2;
	}
	if (config_read(argv[1], &config, &err)) {
		print_error(&err);
		return 1;
	}
	print_config(config);
	config_free(config);
	return 0;
}
