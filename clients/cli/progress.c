/* SPDX-License-Identifier: Apache-2.0 */
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "cli.h"

#define BAR_WIDTH 24

/* Set by the handler; there is no other way to tell it anything. */
static volatile sig_atomic_t interrupted;

static void on_interrupt(int sig)
{
	(void)sig;
	interrupted = 1;
}

static double now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

static int percent_of(const json_t *job)
{
	double total = cli_number(job, "bytes_total");

	return total > 0 ? (int)(100 * cli_number(job, "bytes_done") / total)
			 : 0;
}

struct text {
	char text[256];
	size_t len;
};

ENGRAM_PRINTF(2, 3)
static void put(struct text *t, const char *fmt, ...)
{
	va_list args;
	int n;

	va_start(args, fmt);
	n = vsnprintf(t->text + t->len, sizeof(t->text) - t->len, fmt, args);
	va_end(args);
	if (n > 0)
		t->len += (size_t)n;
	if (t->len > sizeof(t->text) - 1)
		t->len = sizeof(t->text) - 1;
}

/* Of each layer, where there are several. */
static void put_layers(struct text *t, const json_t *job)
{
	const json_t *layers = json_object_get(job, "layers"), *layer;
	size_t i;

	if (json_array_size(layers) < 2)
		return;
	json_array_foreach(layers, i, layer)
	{
		put(t, "%s %lld: %d %%", i ? "," : "  (layer",
		    (long long)cli_int(layer, "layer_id"), percent_of(layer));
	}
	put(t, ")");
}

static void put_figures(struct text *t, const json_t *job)
{
	char done[CLI_WORD], total[CLI_WORD], rate[CLI_WORD], eta[CLI_WORD];

	put(t, "%3d %%  %s of %s  %s/s", percent_of(job),
	    cli_bytes(done, cli_number(job, "bytes_done")),
	    cli_bytes(total, cli_number(job, "bytes_total")),
	    cli_bytes(rate, cli_number(job, "rate")));
	if (json_is_number(json_object_get(job, "eta_seconds")))
		put(t, "  %s left",
		    cli_duration(eta, cli_number(job, "eta_seconds")));
	put_layers(t, job);
}

/* One that the table's users hold up has no figures. */
static bool put_waiting(struct text *t, const json_t *job)
{
	const char *kind = cli_text(job, "kind", "job");

	if (strcmp(cli_text(job, "phase", ""), "waiting") != 0)
		return false;
	put(t, "%s %s: waits for %s to end; \"engramctl clients\" shows whose",
	    kind, cli_text(job, "table", "?"),
	    !strcmp(kind, "reload") ? "leases of the generation before"
				    : "its leases");
	return true;
}

/* A terminal that can go back to the start of a line and erase. */
static bool can_draw(void)
{
	const char *term = getenv("TERM");

	return isatty(STDERR_FILENO) && (!term || strcmp(term, "dumb") != 0);
}

/* A line that wraps can not be drawn over. */
static int columns(void)
{
	struct winsize size;

	if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) || size.ws_col < 2)
		return 80;
	return size.ws_col;
}

static void put_bar(struct text *t, const json_t *job)
{
	int filled = percent_of(job) * BAR_WIDTH / 100, i;

	put(t, "%s %s  [", cli_text(job, "table", "?"),
	    cli_text(job, "phase", cli_text(job, "kind", "")));
	for (i = 0; i < BAR_WIDTH; i++)
		put(t, "%c", i < filled ? '#' : '.');
	put(t, "] ");
	put_figures(t, job);
}

static void print_bar(const json_t *job)
{
	struct text t = {.len = 0};

	if (!put_waiting(&t, job))
		put_bar(&t, job);
	fprintf(stderr, "\r%.*s\033[K", columns() - 1, t.text);
}

static void print_line(const json_t *job)
{
	struct text t = {.len = 0};

	if (!put_waiting(&t, job)) {
		put(&t, "%s %s: %s ", cli_text(job, "kind", "job"),
		    cli_text(job, "table", "?"), cli_text(job, "phase", ""));
		put_figures(&t, job);
	}
	fprintf(stderr, "%s\n", t.text);
}

/* What is said next does not stand in the bar's line. */
static void leave_bar(bool *drawn)
{
	if (*drawn)
		fputc('\n', stderr);
	*drawn = false;
}

static enum cli_exit end_of(struct cli *cli, const json_t *job)
{
	const char *state = cli_text(job, "state", "");
	struct engram_error err;

	if (!strcmp(state, "done"))
		return CLI_OK;
	if (!strcmp(state, "canceled")) {
		engram_error_set(&err, ENGRAM_ECANCELED,
				 "the job was cancelled");
		cli_fail(cli, &err);
		return interrupted ? CLI_INTERRUPTED : CLI_FAILED;
	}
	cli_error_of(json_object_get(job, "error"), &err);
	return cli_fail(cli, &err);
}

/* What Ctrl-C does: leave the job alone, unless asked to cancel it. */
static enum cli_exit interrupt(struct cli *cli, int64_t id, bool cancel)
{
	json_t *result;

	if (!cancel) {
		fprintf(stderr,
			"engramctl: detached; job %lld goes on\n"
			"  fix: \"engramctl tables\" shows its progress\n",
			(long long)id);
		return CLI_INTERRUPTED;
	}
	if (cli_call(cli, "job.cancel",
		     json_pack("{s:I}", "job", (json_int_t)id), &result))
		return cli_fail_last(cli);
	json_decref(result);
	return CLI_OK;
}

static enum cli_exit follow(struct cli *cli, int64_t id, bool cancel,
			    double line_seconds, bool *drawn, json_t **job)
{
	bool terminal = can_draw(), handled = false;
	double printed = now();
	enum cli_exit code;

	for (;;) {
		json_decref(*job);
		if (cli_call(cli, "job.wait",
			     json_pack("{s:I, s:f}", "job", (json_int_t)id,
				       "timeout_seconds", 0.5),
			     job)) {
			leave_bar(drawn);
			return cli_fail_last(cli);
		}
		if (terminal) {
			print_bar(*job);
			*drawn = true;
		}
		if (strcmp(cli_text(*job, "state", ""), "running") != 0)
			return CLI_OK;
		if (!terminal && now() - printed >= line_seconds) {
			print_line(*job);
			printed = now();
		}
		if (interrupted && !handled) {
			handled = true;
			leave_bar(drawn);
			code = interrupt(cli, id, cancel);
			if (code)
				return code;
		}
	}
}

enum cli_exit cli_wait(struct cli *cli, int64_t id, bool cancel_on_interrupt,
		       double line_seconds, json_t **job)
{
	struct sigaction action = {.sa_handler = on_interrupt}, before;
	bool drawn = false;
	enum cli_exit code;

	*job = NULL;
	sigaction(SIGINT, &action, &before);
	code = follow(cli, id, cancel_on_interrupt, line_seconds, &drawn, job);
	sigaction(SIGINT, &before, NULL);
	leave_bar(&drawn);
	return code;
}

enum cli_exit cli_follow(struct cli *cli, int64_t id, bool cancel_on_interrupt,
			 double line_seconds, json_t **job)
{
	enum cli_exit code =
		cli_wait(cli, id, cancel_on_interrupt, line_seconds, job);

	return code ? code : end_of(cli, *job);
}
