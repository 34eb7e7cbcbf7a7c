/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engramctl: a word on the command line is a command in a table, its options
 * are declared beside it, and what it prints is either for people or, with
 * --json, one JSON value on stdout.
 */
#ifndef ENGRAMCTL_CLI_H
#define ENGRAMCTL_CLI_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "engram.h"

/* Exit codes: part of the interface, see engramctl --help. */
enum cli_exit {
	CLI_OK = 0,
	CLI_FAILED = 1,
	CLI_USAGE = 2,
	CLI_UNREACHABLE = 3,
	CLI_NOT_READY = 4,
	CLI_DENIED = 5,
	CLI_TIMED_OUT = 6,
	CLI_INTERRUPTED = 130
};

#define CLI_OPTIONS_MAX 16
#define CLI_ARGS_MAX	32

struct cli_option {
	const char *name;  /* "--tokens" */
	const char *value; /* "IDS", or NULL for a switch */
	const char *help;
};

struct cli {
	const struct cli_command *command;
	bool json;
	const char *socket;
	const char *instance;
	int timeout_ms; /* of a call; 0: the library's default */
	/* of command->options, by index; a switch that is given is "" */
	const char *values[CLI_OPTIONS_MAX];
	const char *args[CLI_ARGS_MAX];
	size_t num_args;
	engram_client *client;
};

struct cli_command {
	const char *name;
	const char *usage; /* what follows the name */
	const char *summary;
	const char *details; /* further lines of --help, or NULL */
	size_t min_args, max_args;
	const struct cli_option *options; /* ends with a NULL name, or NULL */
	enum cli_exit (*run)(struct cli *cli);
};

extern const struct cli_command *const cli_commands[]; /* NULL-terminated */

/* ---- options.c ---- */

/* Take the options of the command line apart; *done is set when the process
 * should exit with the code returned (help, version, a mistake). */
enum cli_exit cli_parse(struct cli *cli, int argc, char **argv, bool *done);

/* The value of an option of this command: NULL if it was not given. */
const char *cli_option(const struct cli *cli, const char *name);
bool cli_switch(const struct cli *cli, const char *name);
/* Numbers; a wrong one is reported, and false returned. */
bool cli_integer(const struct cli *cli, const char *name, int64_t min,
		 int64_t max, int64_t dflt, int64_t *out);
bool cli_real(const struct cli *cli, const char *name, double min, double max,
	      double dflt, double *out);
/* "1,2,3" of a required option; *out is malloc'd. */
bool cli_integers(const struct cli *cli, const char *name, int64_t min,
		  int64_t max, int64_t **out, size_t *count);
bool cli_required(const struct cli *cli, const char *name, const char **out);

/* The member of the NULL-terminated `words` nearest to `word`, or NULL if
 * none is near. */
const char *cli_nearest(const char *word, const char *const *words);

/* ---- report.c ---- */

/* "engramctl: message" and "  fix: ..." on stderr; with --json also
 * {"error": ...} on stdout.  Return the exit code of the status. */
enum cli_exit cli_fail(const struct cli *cli, const struct engram_error *err);
enum cli_exit cli_fail_last(const struct cli *cli);
enum cli_exit cli_usage_error(const char *fix, const char *fmt, ...)
	ENGRAM_PRINTF(2, 3);
enum cli_exit cli_exit_of(enum engram_status status);
/* The error object of a job or a table (as in the protocol). */
void cli_error_of(const json_t *error, struct engram_error *out);

/* Print a value to stdout, indented; it is stolen. */
enum cli_exit cli_print_json(json_t *value);

/* Members of results, with what to show when they are not there. */
const char *cli_text(const json_t *object, const char *key, const char *dflt);
int64_t cli_int(const json_t *object, const char *key);
double cli_number(const json_t *object, const char *key);

/* "188.8 GiB", "3 d 4 h", into buffers that the caller has. */
#define CLI_WORD 48
const char *cli_bytes(char out[CLI_WORD], double bytes);
const char *cli_duration(char out[CLI_WORD], double seconds);

/* Aligned columns: cells are copied, lines printed at the end. */
struct cli_columns;
struct cli_columns *cli_columns_new(size_t columns);
void cli_columns_add(struct cli_columns *c, const char *fmt, ...)
	ENGRAM_PRINTF(2, 3);
/* Prints to stdout and frees. */
void cli_columns_print(struct cli_columns *c);

/* ---- connect.c ---- */

/* The socket that the options or the environment name; `room` may hold it. */
const char *cli_socket(const struct cli *cli, char room[128]);
/* Connect once, and remember it in cli->client. */
enum engram_status cli_connect(struct cli *cli);
/* A call on it; `params` is stolen and may be NULL. */
enum engram_status cli_call(struct cli *cli, const char *method, json_t *params,
			    json_t **result);
/* Attach to all layers, or to the one of --layer; *layer_id is that or -1. */
enum engram_status cli_attach(struct cli *cli, const char *table,
			      int64_t layer_id, engram_table **out);

/* ---- cmd_generations.c ---- */

/* Those of the tables that have others in memory than the current one. */
void cli_print_generations(const json_t *tables);

/* ---- progress.c ---- */

/* Wait for the end of a job, with progress on stderr: a bar on a terminal, else
 * a line every `line_seconds`.  *job is its last state, a new reference. */
enum cli_exit cli_wait(struct cli *cli, int64_t id, bool cancel_on_interrupt,
		       double line_seconds, json_t **job);
/* The same, and a job that fails or is cancelled is reported. */
enum cli_exit cli_follow(struct cli *cli, int64_t id, bool cancel_on_interrupt,
			 double line_seconds, json_t **job);

#endif
