/* SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

enum cli_exit cli_exit_of(enum engram_status status)
{
	switch (status) {
	case ENGRAM_OK:
		return CLI_OK;
	case ENGRAM_EDISCONNECTED:
		return CLI_UNREACHABLE;
	case ENGRAM_ENOTREADY:
	case ENGRAM_EDRAINING:
		return CLI_NOT_READY;
	case ENGRAM_EPERM:
		return CLI_DENIED;
	case ENGRAM_ETIMEDOUT:
		return CLI_TIMED_OUT;
	default:
		return CLI_FAILED;
	}
}

static json_t *error_json(const struct engram_error *err)
{
	json_t *error =
		json_pack("{s:s, s:s}", "name", engram_status_name(err->status),
			  "message", err->message);

	if (err->fix[0])
		json_object_set_new(error, "fix", json_string(err->fix));
	if (err->path[0])
		json_object_set_new(error, "path", json_string(err->path));
	if (err->sys_errno)
		json_object_set_new(error, "errno",
				    json_integer(err->sys_errno));
	if (err->needed)
		json_object_set_new(error, "needed",
				    json_integer((json_int_t)err->needed));
	if (err->available)
		json_object_set_new(error, "available",
				    json_integer((json_int_t)err->available));
	return json_pack("{s:o}", "error", error);
}

enum cli_exit cli_fail(const struct cli *cli, const struct engram_error *err)
{
	fprintf(stderr, "engramctl: %s\n", err->message);
	if (err->fix[0])
		fprintf(stderr, "  fix: %s\n", err->fix);
	if (cli->json)
		cli_print_json(error_json(err));
	return cli_exit_of(err->status);
}

enum cli_exit cli_fail_last(const struct cli *cli)
{
	return cli_fail(cli, engram_last_error());
}

enum cli_exit cli_usage_error(const char *fix, const char *fmt, ...)
{
	va_list args;

	fputs("engramctl: ", stderr);
	va_start(args, fmt);
	vfprintf(stderr, fmt, args);
	va_end(args);
	fprintf(stderr, "\n  fix: %s\n", fix);
	return CLI_USAGE;
}

void cli_error_of(const json_t *error, struct engram_error *out)
{
	const json_t *data = json_object_get(error, "data");
	enum engram_status status =
		engram_status_from_name(cli_text(data, "name", ""));

	if (status == ENGRAM_STATUS_COUNT)
		status = ENGRAM_EPROTOCOL;
	engram_error_set(
		out, status, "%s",
		cli_text(error, "message", engram_status_sentence(status)));
	engram_error_fix(out, "%s", cli_text(data, "fix", ""));
	engram_error_path(out, "%s", cli_text(data, "path", ""));
	engram_error_figures(out, (uint64_t)cli_int(data, "needed"),
			     (uint64_t)cli_int(data, "available"));
}

enum cli_exit cli_print_json(json_t *value)
{
	if (!value || json_dumpf(value, stdout,
				 JSON_INDENT(2) | JSON_ENCODE_ANY |
					 JSON_REAL_PRECISION(12))) {
		json_decref(value);
		fputs("engramctl: no memory for the result\n", stderr);
		return CLI_FAILED;
	}
	putchar('\n');
	json_decref(value);
	return CLI_OK;
}

const char *cli_text(const json_t *object, const char *key, const char *dflt)
{
	const char *text = json_string_value(json_object_get(object, key));

	return text ? text : dflt;
}

int64_t cli_int(const json_t *object, const char *key)
{
	return json_integer_value(json_object_get(object, key));
}

double cli_number(const json_t *object, const char *key)
{
	return json_number_value(json_object_get(object, key));
}

const char *cli_bytes(char out[CLI_WORD], double bytes)
{
	static const char *const units[] = {"B",   "KiB", "MiB",
					    "GiB", "TiB", "PiB"};
	unsigned int unit = 0;

	while (bytes >= 1024 && unit < 5) {
		bytes /= 1024;
		unit++;
	}
	snprintf(out, CLI_WORD, unit ? "%.1f %s" : "%.0f %s", bytes,
		 units[unit]);
	return out;
}

const char *cli_duration(char out[CLI_WORD], double seconds)
{
	unsigned long long s = seconds > 0 ? (unsigned long long)seconds : 0;

	if (s >= 86400)
		snprintf(out, CLI_WORD, "%llu d %llu h", s / 86400,
			 s % 86400 / 3600);
	else if (s >= 3600)
		snprintf(out, CLI_WORD, "%llu h %llu min", s / 3600,
			 s % 3600 / 60);
	else if (s >= 60)
		snprintf(out, CLI_WORD, "%llu min %llu s", s / 60, s % 60);
	else
		snprintf(out, CLI_WORD, s >= 10 ? "%.0f s" : "%.1f s",
			 seconds > 0 ? seconds : 0);
	return out;
}

/* ---- columns ---- */

#define CELLS_MAX   4096
#define COLUMNS_MAX 16

struct cli_columns {
	size_t columns, count;
	char *cells[CELLS_MAX];
};

struct cli_columns *cli_columns_new(size_t columns)
{
	struct cli_columns *c = calloc(1, sizeof(*c));

	if (c)
		c->columns = columns < COLUMNS_MAX ? columns : COLUMNS_MAX;
	return c;
}

void cli_columns_add(struct cli_columns *c, const char *fmt, ...)
{
	va_list args;

	if (!c || c->count == CELLS_MAX)
		return;
	va_start(args, fmt);
	if (vasprintf(&c->cells[c->count], fmt, args) >= 0)
		c->count++;
	va_end(args);
}

void cli_columns_print(struct cli_columns *c)
{
	size_t width[COLUMNS_MAX] = {0}, i, column;

	if (!c)
		return;
	for (i = 0; i < c->count; i++) {
		column = i % c->columns;
		if (strlen(c->cells[i]) > width[column])
			width[column] = strlen(c->cells[i]);
	}
	for (i = 0; i < c->count; i++) {
		column = i % c->columns;
		/* no blanks at the end of a line */
		if (column + 1 == c->columns)
			printf("%s\n", c->cells[i]);
		else
			printf("%-*s  ", (int)width[column], c->cells[i]);
		free(c->cells[i]);
	}
	free(c);
}
