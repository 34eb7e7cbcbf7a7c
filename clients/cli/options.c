/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

static const struct cli_option global_options[] = {
	{"--socket", "PATH", "socket of engramd ($ENGRAMD_SOCKET)"},
	{"--instance", "NAME", "socket /run/engramd/NAME.sock"},
	{"--timeout", "SECONDS", "wait this long for an answer (30)"},
	{"--json", NULL, "print JSON on stdout"},
	{"--help", NULL, "show help, also of a command"},
	{"--version", NULL, "show the version"},
	{0},
};

/* ---- suggestions ---- */

static size_t min3(size_t a, size_t b, size_t c)
{
	size_t m = a < b ? a : b;

	return m < c ? m : c;
}

#define WORD_MAX 32

/* Levenshtein distance; words too long to be meant are far from all. */
static size_t distance(const char *a, const char *b)
{
	size_t la = strlen(a), lb = strlen(b), i, j, diagonal, above;
	size_t row[WORD_MAX + 1];

	if (la > WORD_MAX || lb > WORD_MAX)
		return WORD_MAX;
	for (j = 0; j <= lb; j++)
		row[j] = j;
	for (i = 1; i <= la; i++) {
		diagonal = row[0];
		row[0] = i;
		for (j = 1; j <= lb; j++) {
			above = row[j];
			row[j] = min3(above + 1, row[j - 1] + 1,
				      diagonal + (a[i - 1] != b[j - 1]));
			diagonal = above;
		}
	}
	return row[lb];
}

const char *cli_nearest(const char *word, const char *const *words)
{
	const char *nearest = NULL;
	/* The dashes of an option make it no more alike. */
	size_t best = strlen(word + strspn(word, "-")) / 3 + 2, d;

	for (; *words; words++) {
		d = distance(word, *words);
		if (d < best) {
			best = d;
			nearest = *words;
		}
	}
	return nearest;
}

/* ---- help ---- */

static void print_options(const struct cli_option *options)
{
	char left[64];

	for (; options && options->name; options++) {
		snprintf(left, sizeof(left), "%s%s%s", options->name,
			 options->value ? " " : "",
			 options->value ? options->value : "");
		printf("  %-28s %s\n", left, options->help);
	}
}

static void print_help(void)
{
	const struct cli_command *const *c;

	printf("usage: engramctl [OPTIONS] COMMAND [ARGUMENTS]\n\n"
	       "Ask engramd, and use the tables that it holds.\n\n"
	       "commands:\n");
	for (c = cli_commands; *c; c++)
		printf("  %-10s %s\n", (*c)->name, (*c)->summary);
	printf("\noptions:\n");
	print_options(global_options);
	printf("\nexit codes:\n"
	       "  0    done\n"
	       "  1    the operation failed\n"
	       "  2    the command line is wrong\n"
	       "  3    engramd is not reachable\n"
	       "  4    a table is not ready, or engramd not healthy\n"
	       "  5    permission denied\n"
	       "  6    no answer in time\n"
	       "  130  interrupted\n\n"
	       "engramctl COMMAND --help tells more.\n");
}

static void print_command_help(const struct cli_command *command)
{
	printf("usage: engramctl %s%s%s\n\n%s\n", command->name,
	       *command->usage ? " " : "", command->usage, command->summary);
	if (command->details)
		printf("%s\n", command->details);
	if (command->options) {
		printf("\noptions:\n");
		print_options(command->options);
	}
	printf("\noptions of all commands:\n");
	print_options(global_options);
}

/* ---- parsing ---- */

static enum cli_exit unknown_command(const char *word)
{
	const char *names[32] = {0};
	const char *nearest;
	char fix[128];
	size_t i;

	for (i = 0; i < 31 && cli_commands[i]; i++)
		names[i] = cli_commands[i]->name;
	nearest = cli_nearest(word, names);
	if (nearest)
		snprintf(fix, sizeof(fix), "did you mean \"%s\"?", nearest);
	return cli_usage_error(nearest ? fix
				       : "engramctl --help lists the commands",
			       "unknown command \"%s\"", word);
}

static enum cli_exit unknown_option(const struct cli *cli, const char *word)
{
	const struct cli_option *lists[2] = {
		global_options, cli->command ? cli->command->options : NULL};
	const char *names[CLI_OPTIONS_MAX + 8] = {0};
	const struct cli_option *o;
	const char *nearest;
	char fix[128];
	size_t i, n = 0;

	for (i = 0; i < 2; i++)
		for (o = lists[i]; o && o->name; o++)
			names[n++] = o->name;
	nearest = cli_nearest(word, names);
	if (nearest)
		snprintf(fix, sizeof(fix), "did you mean \"%s\"?", nearest);
	else
		snprintf(fix, sizeof(fix),
			 "engramctl %s%s--help lists the "
			 "options",
			 cli->command ? cli->command->name : "",
			 cli->command ? " " : "");
	return cli_usage_error(fix, "unknown option \"%s\"", word);
}

static const struct cli_command *find_command(const char *name)
{
	const struct cli_command *const *c;

	for (c = cli_commands; *c; c++)
		if (!strcmp((*c)->name, name))
			return *c;
	return NULL;
}

/* Index in `options`, whose name is the first `len` bytes of `word`; or -1. */
static int find_option(const struct cli_option *options, const char *word,
		       size_t len)
{
	int i;

	for (i = 0; options && options[i].name; i++)
		if (strlen(options[i].name) == len &&
		    !strncmp(options[i].name, word, len))
			return i;
	return -1;
}

static enum cli_exit set_global(struct cli *cli, const char *name,
				const char *value, bool *help, bool *version)
{
	char *end;
	double seconds;

	if (!strcmp(name, "--socket")) {
		cli->socket = value;
	} else if (!strcmp(name, "--instance")) {
		cli->instance = value;
	} else if (!strcmp(name, "--json")) {
		cli->json = true;
	} else if (!strcmp(name, "--help")) {
		*help = true;
	} else if (!strcmp(name, "--version")) {
		*version = true;
	} else {
		seconds = strtod(value, &end);
		if (end == value || *end || !(seconds > 0 && seconds <= 1e6))
			return cli_usage_error("give seconds, up to 1000000",
					       "--timeout: \"%s\" is not a "
					       "time",
					       value);
		cli->timeout_ms = (int)ceil(seconds * 1000);
	}
	return CLI_OK;
}

/* One word that starts with "--"; *next is the word after it, or NULL, and
 * becomes NULL when it has been used. */
static enum cli_exit take_option(struct cli *cli, const char *word,
				 const char **next, bool *help, bool *version)
{
	const char *value = strchr(word, '=');
	size_t len = value ? (size_t)(value - word) : strlen(word);
	const struct cli_option *options = global_options;
	int i = find_option(options, word, len);

	if (i < 0 && cli->command) {
		options = cli->command->options;
		i = find_option(options, word, len);
	}
	if (i < 0)
		return unknown_option(cli, word);
	if (!options[i].value && value)
		return cli_usage_error("leave the value out",
				       "%s takes no value", options[i].name);
	if (value)
		value++;
	if (options[i].value && !value) {
		value = *next;
		*next = NULL;
		if (!value)
			return cli_usage_error("put it after the option",
					       "%s needs a value, %s",
					       options[i].name,
					       options[i].value);
	}
	if (!options[i].value)
		value = "";
	if (options == global_options)
		return set_global(cli, options[i].name, value, help, version);
	cli->values[i] = value;
	return CLI_OK;
}

static enum cli_exit take_word(struct cli *cli, const char *word)
{
	char fix[256];

	if (!cli->command) {
		cli->command = find_command(word);
		return cli->command ? CLI_OK : unknown_command(word);
	}
	if (cli->num_args == cli->command->max_args) {
		snprintf(fix, sizeof(fix), "usage: engramctl %s %s",
			 cli->command->name, cli->command->usage);
		return cli_usage_error(fix, "%s: \"%s\" is too much",
				       cli->command->name, word);
	}
	cli->args[cli->num_args++] = word;
	return CLI_OK;
}

static enum cli_exit check_words(const struct cli *cli)
{
	char fix[256];

	if (!cli->command)
		return cli_usage_error("engramctl --help lists the commands",
				       "no command given");
	if (cli->num_args >= cli->command->min_args)
		return CLI_OK;
	snprintf(fix, sizeof(fix), "usage: engramctl %s %s", cli->command->name,
		 cli->command->usage);
	return cli_usage_error(fix, "%s: an argument is missing",
			       cli->command->name);
}

enum cli_exit cli_parse(struct cli *cli, int argc, char **argv, bool *done)
{
	bool help = false, version = false, words_only = false;
	enum cli_exit code = CLI_OK;
	const char *next;
	int i;

	*done = true;
	for (i = 1; i < argc && !code; i++) {
		if (!words_only && !strcmp(argv[i], "--")) {
			words_only = true;
		} else if (!words_only && !strcmp(argv[i], "-h")) {
			help = true;
		} else if (!words_only && argv[i][0] == '-' && argv[i][1]) {
			next = i + 1 < argc ? argv[i + 1] : NULL;
			code = take_option(cli, argv[i], &next, &help,
					   &version);
			if (i + 1 < argc && !next)
				i++;
		} else {
			code = take_word(cli, argv[i]);
		}
	}
	if (code)
		return code;
	if (version) {
		printf("engramctl %s\n", engram_version());
		return CLI_OK;
	}
	if (help) {
		if (cli->command)
			print_command_help(cli->command);
		else
			print_help();
		return CLI_OK;
	}
	code = check_words(cli);
	*done = code != CLI_OK;
	return code;
}

/* ---- values ---- */

const char *cli_option(const struct cli *cli, const char *name)
{
	int i = find_option(cli->command->options, name, strlen(name));

	return i < 0 ? NULL : cli->values[i];
}

bool cli_switch(const struct cli *cli, const char *name)
{
	return cli_option(cli, name) != NULL;
}

static bool integer_of(const char *text, char **end, int64_t min, int64_t max,
		       int64_t *out)
{
	errno = 0;
	*out = strtoll(text, end, 10);
	return *end != text && !errno && *out >= min && *out <= max;
}

enum number { INTEGER, REAL };

/* `text` is the whole of it or, of a list, the number at fault. */
static bool bad_number(enum number kind, const char *fix, const char *name,
		       const char *text, size_t len)
{
	const char *no = kind == REAL ? "no number" : "no integer";
	const size_t digits =
		strspn(text, kind == REAL ? "+-.0123456789eE" : "+-0123456789");

	cli_usage_error(fix, "%s: \"%.*s\" is %s", name, (int)len, text,
			len && digits >= len ? "out of range" : no);
	return false;
}

bool cli_integer(const struct cli *cli, const char *name, int64_t min,
		 int64_t max, int64_t dflt, int64_t *out)
{
	const char *text = cli_option(cli, name);
	char fix[96];
	char *end;

	*out = dflt;
	if (!text)
		return true;
	if (integer_of(text, &end, min, max, out) && !*end)
		return true;
	snprintf(fix, sizeof(fix),
		 "give an integer from %" PRId64 " to %" PRId64, min, max);
	return bad_number(INTEGER, fix, name, text, strlen(text));
}

bool cli_real(const struct cli *cli, const char *name, double min, double max,
	      double dflt, double *out)
{
	const char *text = cli_option(cli, name);
	char fix[96];
	char *end;

	*out = dflt;
	if (!text)
		return true;
	*out = strtod(text, &end);
	if (end != text && !*end && *out >= min && *out <= max)
		return true;
	snprintf(fix, sizeof(fix), "give a number from %g to %g", min, max);
	return bad_number(REAL, fix, name, text, strlen(text));
}

bool cli_required(const struct cli *cli, const char *name, const char **out)
{
	char fix[256];

	*out = cli_option(cli, name);
	if (*out)
		return true;
	snprintf(fix, sizeof(fix), "usage: engramctl %s %s", cli->command->name,
		 cli->command->usage);
	cli_usage_error(fix, "%s: %s is missing", cli->command->name, name);
	return false;
}

bool cli_integers(const struct cli *cli, const char *name, int64_t min,
		  int64_t max, int64_t **out, size_t *count)
{
	const char *text, *at;
	char fix[128];
	size_t n = 1;
	char *end;

	*out = NULL;
	*count = 0;
	if (!cli_required(cli, name, &text))
		return false;
	for (at = text; *at; at++)
		n += *at == ',';
	*out = calloc(n, sizeof(**out));
	if (!*out) {
		cli_usage_error("give fewer", "%s: no memory for %zu numbers",
				name, n);
		return false;
	}
	for (at = text;; at = end + 1) {
		if (!integer_of(at, &end, min, max, *out + *count) ||
		    (*end && *end != ',')) {
			free(*out);
			*out = NULL;
			snprintf(fix, sizeof(fix),
				 "give integers from %" PRId64 " to %" PRId64
				 " with commas between them, as 1,2,3",
				 min, max);
			return bad_number(INTEGER, fix, name, at,
					  strcspn(at, ","));
		}
		++*count;
		if (!*end)
			return true;
	}
}
