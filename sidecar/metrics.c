/* SPDX-License-Identifier: Apache-2.0 */
#include "metrics.h"

#include <stdio.h>
#include <string.h>

#include "clock.h"
#include "http.h"
#include "log.h"
#include "memory.h"
#include "rpc.h"
#include "views.h"

/* ---- /readyz ---- */

/* The first table that ought to be lent and is not, or NULL. */
static const struct table *not_ready(const struct server *server)
{
	const struct table *table;

	TAILQ_FOREACH(table, &server->tables.list, entry)
	if (table->configured && table->spec->config.load_at_start &&
	    table->state != ENGRAM_TABLE_READY)
		return table;
	return NULL;
}

static bool is_ready(const struct server *server)
{
	return server->started && !server->stopping && !not_ready(server);
}

/* ---- /metrics ---- */

static void expose_build(struct exposition *e, const struct server *server)
{
	expose_family(e, "engram_build_info", "gauge",
		      "Which engramd this is; always 1.");
	expose_count(e,
		     LABELS("version", ENGRAM_VERSION_STRING, "instance",
			    server->config->instance),
		     1);
}

static void expose_server(struct exposition *e, const struct server *server)
{
	expose_build(e, server);
	expose_gauge(e, "engram_start_time_seconds",
		     "When engramd started, in seconds since the epoch.",
		     (double)server->page->start_ns / 1e9);
	expose_gauge(e, "engram_uptime_seconds",
		     "Seconds since engramd started.",
		     clock_seconds_since(server->start_ns));
	expose_gauge(e, "engram_ready",
		     "1 if every table that is loaded at start is ready, else "
		     "0; as /readyz.",
		     is_ready(server));
	expose_counter(e, "engram_log_dropped_lines_total",
		       "Lines of the log that nobody read in time.",
		       (double)log_dropped());
}

static void expose_memory(struct exposition *e, const struct server *server)
{
	const struct engram_backing *backing = &server->tables.backing;
	const struct table *table;
	uint64_t bytes = 0;

	TAILQ_FOREACH(table, &server->tables.list, entry)
	bytes += view_table_bytes(table);
	expose_gauge(e, "engram_memory_table_bytes",
		     "Memory of all generations of all tables.", (double)bytes);
	expose_gauge(e, "engram_memory_locked_bytes",
		     "Memory that engramd has pinned.",
		     (double)memory_locked());
	if (backing->kind != ENGRAM_BACKING_MEMFD &&
	    engram_backing_room(backing, &bytes, NULL) == ENGRAM_OK)
		expose_gauge(e, "engram_memory_room_bytes",
			     "What the backing has left; absent where that is "
			     "not known.",
			     (double)bytes);
}

static void expose_connections(struct exposition *e,
			       const struct server *server)
{
	expose_gauge(e, "engram_connections", "Clients that are connected.",
		     server->num_clients);
	expose_counter(e, "engram_connections_opened_total",
		       "Connections that were accepted.",
		       (double)server->next_client);
	expose_counter(e, "engram_connections_refused_total",
		       "Connections that were refused: too many, or no memory.",
		       (double)server->refused);
}

/* Of what names no method that there is, too. */
static const char *method_name(size_t i)
{
	return i < RPC_METHODS_MAX ? rpc_methods[i].name : "unknown";
}

static void expose_errors(struct exposition *e, const struct server *server,
			  size_t method)
{
	const uint64_t *errors = server->rpc_counts.errors[method];

	for (int i = 0; i < ENGRAM_STATUS_COUNT; i++)
		if (errors[i])
			expose_count(e,
				     LABELS("method", method_name(method),
					    "error",
					    engram_status_name(
						    (enum engram_status)i)),
				     errors[i]);
}

static void expose_requests(struct exposition *e, const struct server *server)
{
	size_t i;

	expose_family(e, "engram_rpc_requests_total", "counter",
		      "Requests on the control socket.");
	for (i = 0; rpc_methods[i].name; i++)
		expose_count(e, LABELS("method", method_name(i)),
			     server->rpc_counts.calls[i]);
	expose_count(e, LABELS("method", method_name(RPC_METHODS_MAX)),
		     server->rpc_counts.calls[RPC_METHODS_MAX]);
	expose_family(e, "engram_rpc_errors_total", "counter",
		      "Requests that failed, by the name of the error.");
	for (i = 0; rpc_methods[i].name; i++)
		expose_errors(e, server, i);
	expose_errors(e, server, RPC_METHODS_MAX);
}

static void expose_ended_jobs(struct exposition *e, const struct jobs *jobs)
{
	expose_family(e, "engram_jobs_total", "counter",
		      "Jobs that have ended, by kind and result.");
	for (int kind = 0; kind < JOB_KINDS; kind++)
		for (int state = JOB_DONE; state < JOB_STATES; state++)
			expose_count(
				e,
				LABELS("kind",
				       job_kind_name((enum job_kind)kind),
				       "result",
				       job_state_name((enum job_state)state)),
				jobs->counts[kind][state]);
	expose_family(e, "engram_job_seconds_total", "counter",
		      "Seconds that jobs took which have ended.");
	for (int kind = 0; kind < JOB_KINDS; kind++)
		expose_real(e,
			    LABELS("kind", job_kind_name((enum job_kind)kind)),
			    (double)jobs->ns[kind] / 1e9);
}

static void expose_jobs(struct exposition *e, const struct server *server)
{
	const struct jobs *jobs = &server->jobs;

	expose_ended_jobs(e, jobs);
	expose_counter(e, "engram_load_read_bytes_total",
		       "Bytes of records that jobs which have ended read from "
		       "checkpoints.",
		       (double)jobs->bytes_read);
	expose_counter(
		e, "engram_verified_bytes_total",
		"Bytes of records that they compared with their checksums.",
		(double)jobs->bytes_verified);
	expose_counter(e, "engram_adoptions_total",
		       "Generations taken over from a former engramd.",
		       (double)server->adoptions);
}

/* ---- answers ---- */

static void finish(struct http_answer *answer, int code, const char *type,
		   struct text *body)
{
	answer->code = code;
	answer->type = type;
	answer->body = text_take(body, &answer->len);
}

static void answer_metrics(const struct server *server,
			   struct http_answer *answer)
{
	struct exposition e = {0};

	expose_server(&e, server);
	expose_memory(&e, server);
	metrics_tables(&e, server);
	expose_jobs(&e, server);
	expose_connections(&e, server);
	expose_requests(&e, server);
	metrics_gather(&e, &server->gather);
	finish(answer, 200, EXPOSITION_TYPE, &e.out);
}

/* A sentence, and of which table, or NULL. */
static void say(struct http_answer *answer, int code, const struct table *table,
		const char *sentence)
{
	struct text body = {0};

	if (table)
		text_printf(&body, "table \"%s\" is ", table->name);
	text_printf(&body, "%s\n", sentence);
	finish(answer, code, "text/plain; charset=utf-8", &body);
}

static void say_failed(struct http_answer *answer, const struct table *table)
{
	char sentence[sizeof(table->error.message) + 16];

	snprintf(sentence, sizeof(sentence), "failed: %s",
		 table->error.message);
	say(answer, 503, table, sentence);
}

static void answer_ready(const struct server *server,
			 struct http_answer *answer)
{
	const struct table *table = not_ready(server);

	if (server->stopping)
		say(answer, 503, NULL, "engramd is stopping");
	else if (table && table->state == ENGRAM_TABLE_FAILED)
		say_failed(answer, table);
	else if (table)
		say(answer, 503, table, engram_table_state_name(table->state));
	else if (!server->started)
		say(answer, 503, NULL, "engramd is starting");
	else
		say(answer, 200, NULL, "ready");
}

static void on_get(void *ctx, const char *path, struct http_answer *answer)
{
	if (!strcmp(path, "/metrics"))
		answer_metrics(ctx, answer);
	else if (!strcmp(path, "/healthz"))
		say(answer, 200, NULL, "live");
	else if (!strcmp(path, "/readyz"))
		answer_ready(ctx, answer);
}

enum engram_status metrics_start(struct server *server,
				 struct engram_error *err)
{
	const struct config *config = server->config;
	const struct http_options options = {
		.listen = config->metrics.listen,
		.listen_key = "metrics.listen",
		.path = {.path = config->metrics.path,
			 .key = "metrics.path",
			 .mode = config->socket_mode,
			 .group = config->socket_group},
		.get = on_get,
		.ctx = server};
	enum engram_status status;

	if (!config->metrics.listen && !config->metrics.path)
		return ENGRAM_OK;
	status = http_open(server->base, &options, &server->metrics, err);
	if (!status)
		log_info("metrics",
			 LOG_S("listen", http_address(server->metrics)),
			 LOG_S("path", config->metrics.path));
	return status;
}
