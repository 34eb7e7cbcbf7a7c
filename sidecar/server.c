/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "clients.h"
#include "clock.h"
#include "events.h"
#include "failpoint.h"
#include "http.h"
#include "log.h"
#include "methods.h"
#include "metrics.h"
#include "notify.h"
#include "reload.h"
#include "server.h"

#define STOP_SECONDS 60 /* then names are removed, and memory left to exit */

static void on_overdue(void *ctx, struct generation *gen)
{
	events_overdue(ctx, gen);
}

static void name_holders(void *ctx, const struct generation *gen, char *out,
			 size_t size)
{
	clients_name_holders(ctx, gen, out, size);
}

static void on_table_changed(void *ctx, struct table *table)
{
	log_debug("table changed", LOG_S("table", table->name),
		  LOG_S("state", engram_table_state_name(table->state)));
	events_table(ctx, table);
}

static void leave_if_stopped(struct server *server)
{
	if (server->stopping && tables_stopped(&server->tables))
		event_base_loopbreak(server->base);
}

/* Besides once a second.  Not as a timeout: libevent would put the next one a
 * second after the one that was due, further off with each call. */
static void tick_now(struct server *server)
{
	event_active(server->tick, EV_READ, 0);
}

static void count_adoption(struct server *server, const struct job *job)
{
	const struct table *table = tables_find(&server->tables, job->table);

	if (job->kind == JOB_LOAD && job->state == JOB_DONE && table &&
	    table->current && table->current->adopted &&
	    table->current->number == job->generation)
		server->adoptions++;
}

static void on_job_changed(void *ctx, struct job *job)
{
	struct server *server = ctx;

	events_job(server, job);
	if (job->state == JOB_RUNNING)
		return;
	count_adoption(server, job);
	job_waits_answer(server, job);
	/* The table's next step may be another job: ask again later. */
	tick_now(server);
}

static void on_tick(evutil_socket_t fd, short what, void *arg)
{
	struct server *server = arg;

	(void)fd;
	(void)what;
	engram_control_store64(&server->page->heartbeat_ns, clock_ns());
	tables_tick(&server->tables);
	events_tick(server);
	notify_tick(server);
	leave_if_stopped(server);
}

/* ---- stopping ---- */

/* May it become a table again?  Its load decides. */
static bool may_be_adopted(const struct config *config,
			   const struct engram_segment_entry *entry)
{
	size_t i;

	if (config->adopt == ADOPT_OFF || entry->temporary)
		return false;
	for (i = 0; i < config->num_tables; i++)
		if (!strcmp(config->tables[i].name, entry->table))
			return true;
	return false;
}

/* What the backing has of this instance; with `all` not set, but for what
 * may be adopted. */
static void remove_segments(const struct server *server, bool all)
{
	struct engram_segment_entry *entries = NULL;
	struct engram_error err;
	size_t count = 0, i;

	if (engram_segment_list(&server->backing, server->config->instance,
				&entries, &count, &err)) {
		log_failure(LOG_WARN, "segments can not be listed", &err);
		return;
	}
	for (i = 0; i < count; i++) {
		if (entries[i].control ||
		    (!all && may_be_adopted(server->config, &entries[i])))
			continue;
		log_info("removing segment", LOG_S("name", entries[i].name),
			 LOG_U("bytes", entries[i].bytes));
		if (engram_segment_remove(&server->backing, entries[i].name,
					  &err))
			log_failure(LOG_WARN, "segment not removed", &err);
	}
	free(entries);
}

/* Who has mapped the page sees in it that the next engramd is there. */
static bool leaves_page(const struct server *server)
{
	return server->started && server->tables.keep;
}

/* The names go; the kernel frees the memory. */
static void stop_at_once(struct server *server, const char *why)
{
	log_warn("stopping at once", LOG_S("why", why));
	listener_close(server->listener);
	http_close(server->metrics);
	if (!server->tables.keep)
		remove_segments(server, true);
	engram_control_disown(server->control, !leaves_page(server));
	_exit(1);
}

static void on_stop_deadline(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	stop_at_once(arg, "jobs did not end in time");
}

void server_stop(struct server *server)
{
	static const struct timeval limit = {.tv_sec = STOP_SECONDS};

	if (server->stopping)
		return;
	FAILPOINT(stop_begin);
	server->stopping = true;
	log_info("stopping");
	notify_stopping();
	notify_extend(STOP_SECONDS + 30);
	listener_close(server->listener);
	server->listener = NULL;
	FAILPOINT(stop_deaf);
	events_shutdown(server);
	clients_finish(server);
	tables_stop(&server->tables);
	event_add(server->stop_deadline, &limit);
	tick_now(server);
}

static void on_stop_signal(evutil_socket_t signal, short what, void *arg)
{
	struct server *server = arg;

	(void)what;
	log_info("signal", LOG_S("signal", strsignal((int)signal)));
	if (server->stopping)
		stop_at_once(server, "a second signal");
	server_stop(server);
}

static void on_reload_signal(evutil_socket_t signal, short what, void *arg)
{
	struct engram_error err;

	(void)signal;
	(void)what;
	notify_reloading();
	server_reload(arg, &err);
	notify_ready();
}

enum engram_status server_reload(struct server *server,
				 struct engram_error *err)
{
	enum engram_status status = reload_config(server, err);

	if (status)
		log_failure(LOG_ERROR, "configuration not reloaded", err);
	else
		log_info("configuration reloaded",
			 LOG_S("file", server->config_file));
	return status;
}

/* ---- starting ---- */

/* Each lease takes no descriptor of ours, but each connection and each
 * segment does. */
static void raise_descriptor_limit(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) ||
	    limit.rlim_cur == limit.rlim_max)
		return;
	limit.rlim_cur = limit.rlim_max;
	if (setrlimit(RLIMIT_NOFILE, &limit))
		log_warn("descriptor limit not raised",
			 LOG_S("error", strerror(errno)));
}

static enum engram_status add_signal(struct server *server, int at, int signal,
				     event_callback_fn fn,
				     struct engram_error *err)
{
	server->signals[at] = evsignal_new(server->base, signal, fn, server);
	if (!server->signals[at] || event_add(server->signals[at], NULL))
		return engram_error_set(err, ENGRAM_ENOMEM,
					"no memory for events");
	return ENGRAM_OK;
}

static enum engram_status add_events(struct server *server,
				     struct engram_error *err)
{
	static const struct timeval second = {.tv_sec = 1};
	enum engram_status status;

	status = add_signal(server, 0, SIGTERM, on_stop_signal, err);
	if (!status)
		status = add_signal(server, 1, SIGINT, on_stop_signal, err);
	if (!status)
		status = add_signal(server, 2, SIGHUP, on_reload_signal, err);
	if (status)
		return status;
	server->tick = event_new(server->base, -1, EV_PERSIST, on_tick, server);
	server->stop_deadline =
		event_new(server->base, -1, 0, on_stop_deadline, server);
	if (!server->tick || !server->stop_deadline ||
	    event_add(server->tick, &second))
		return engram_error_set(err, ENGRAM_ENOMEM,
					"no memory for events");
	return ENGRAM_OK;
}

static enum engram_status own_instance(struct server *server,
				       struct engram_error *err)
{
	struct config *config = server->config;
	enum engram_status status;

	status = fd_store_open(&server->fd_store, config->instance,
			       &config->backing, err);
	if (status)
		return status;
	server->backing = config->backing;
	status = engram_control_own(&server->backing, config->instance,
				    &server->control, err);
	if (status)
		return status;
	server->page = engram_control_owner_page(server->control);
	server->control_fd = -1;
	status = engram_control_reopen(server->control, &server->control_fd,
				       err);
	if (status)
		return status;
	/* What a former owner left behind is nobody's now. */
	remove_segments(server, false);
	FAILPOINT(start_cleaned);
	return ENGRAM_OK;
}

static enum engram_status start(struct server *server, struct engram_error *err)
{
	const struct config *config = server->config;
	struct listener_options options = {.path = config->socket,
					   .key = "socket.path",
					   .mode = config->socket_mode,
					   .group = config->socket_group,
					   .accepted = clients_accept,
					   .ctx = server};
	const struct tables_hooks hooks = {.changed = on_table_changed,
					   .overdue = on_overdue,
					   .holders = name_holders,
					   .ctx = server};
	enum engram_status status;

	server->base = event_base_new();
	if (!server->base)
		return engram_error_set(err, ENGRAM_ENOMEM,
					"the event loop can not be made");
	status = own_instance(server, err);
	if (!status)
		status = mailbox_open(&server->mailbox, server->base, err);
	if (status)
		return status;
	jobs_init(&server->jobs, &server->mailbox, on_job_changed, server);
	status = tables_init(&server->tables, &server->jobs, server->page,
			     config, &hooks, err);
	if (!status)
		status = add_events(server, err);
	if (!status)
		status = gather_start(&server->gather, server->base,
				      &config->gather, err);
	if (!status)
		status = listener_open(server->base, &options,
				       &server->listener, err);
	if (!status)
		status = metrics_start(server, err);
	if (status)
		return status;
	FAILPOINT(start_listening);
	server->tables.starting = true;
	status = tables_configure(&server->tables, server->config, err);
	server->tables.starting = false;
	return status;
}

static void free_event(struct event *event)
{
	if (event)
		event_free(event);
}

/* SIG_BLOCK or SIG_UNBLOCK those that the loop handles. */
static void mask_signals(int how)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGHUP);
	sigprocmask(how, &set, NULL);
}

static void finish(struct server *server)
{
	unsigned int i;

	/* From here on there is nothing to interrupt: a signal would only
	 * keep the last names from being removed. */
	mask_signals(SIG_BLOCK);
	clients_free(server);
	gather_stop(&server->gather);
	listener_close(server->listener);
	http_close(server->metrics);
	if (server->tables.jobs) {
		tables_free(&server->tables);
		jobs_free(&server->jobs);
	}
	if (server->mailbox.event)
		mailbox_close(&server->mailbox);
	for (i = 0; i < 3; i++)
		free_event(server->signals[i]);
	free_event(server->tick);
	free_event(server->stop_deadline);
	if (server->base)
		event_base_free(server->base);
	FAILPOINT(stop_freed);
	if (server->control) {
		/* Also what was left and never adopted. */
		if (server->stopping && !server->tables.keep)
			remove_segments(server, true);
		if (server->control_fd >= 0)
			close(server->control_fd);
		engram_control_disown(server->control, !leaves_page(server));
	}
	fd_store_close(&server->fd_store);
	config_free(server->config);
}

int server_run(const char *config_file, struct config *config)
{
	struct server server = {.config_file = config_file,
				.config = config,
				.start_ns = clock_ns()};
	struct engram_error err = {0};
	int code = 0;

	TAILQ_INIT(&server.clients);
	LIST_INIT(&server.waits);
	signal(SIGPIPE, SIG_IGN);
	/* One that comes before the loop can handle it would leave names. */
	mask_signals(SIG_BLOCK);
	raise_descriptor_limit();
	notify_extend(60);
	if (start(&server, &err)) {
		log_failure(LOG_ERROR, "start failed", &err);
		code = 1;
		/* What a former engramd has left is still good. */
		server.tables.keep = config->adopt != ADOPT_OFF;
		/* Loads may have begun before the fault. */
		if (server.tables.jobs && server.tick)
			server_stop(&server);
	} else {
		log_info("ready", LOG_S("version", ENGRAM_VERSION_STRING),
			 LOG_S("instance", config->instance),
			 LOG_S("socket", config->socket));
		notify_ready();
		server.started = true;
	}
	mask_signals(SIG_UNBLOCK);
	if ((!code || server.stopping) && event_base_dispatch(server.base) < 0)
		code = 1;
	finish(&server);
	log_info("stopped");
	return code;
}
