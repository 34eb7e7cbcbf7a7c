/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A table whose configuration says so is reloaded when its checkpoint changes.
 * What the last load or reload from there has found is not tried again, so that
 * one that failed, or was cancelled, waits for the next change.
 */
#include <string.h>

#include "log.h"
#include "tables.h"

static struct table *find_watched(struct tables *tables, uint64_t id)
{
	struct table *table;

	TAILQ_FOREACH(table, &tables->list, entry)
	if (table->watch == id)
		return table;
	return NULL;
}

static void on_told(void *ctx, uint64_t id, const struct watch_identity *seen,
		    bool returned)
{
	struct table *table = find_watched(ctx, id);

	if (!table)
		return;
	table->watch_seen = *seen;
	/* One that failed for what was missing is not to fail for ever. */
	table->watch_due = !watch_same(seen, &table->watch_tried) ||
			   (returned && table->failed);
	if (table->watch_due && table->staged)
		log_info("checkpoint has changed: reloaded once the held "
			 "generation is published or discarded",
			 LOG_S("table", table->name));
	table_watch_step(table);
}

void table_watch_step(struct table *table)
{
	const struct reload_terms terms = {0};
	enum engram_status status;
	struct engram_error err;
	struct job *job;

	if (!table->watch_due || table->job || table->staged ||
	    table->retiring || table->tables->stopping)
		return;
	table->watch_due = false;
	/* One that nobody has loaded yet, or that was unloaded, stays so. */
	if (!table->current && table->state != ENGRAM_TABLE_FAILED)
		return;
	log_info("checkpoint has changed", LOG_S("table", table->name),
		 LOG_S("checkpoint", table->spec->config.checkpoint));
	status = table->current ? table_reload(table, &terms, &job, &err)
				: table_load(table, &job, &err);
	if (status)
		log_failure(LOG_ERROR, "reload not started", &err);
}

void table_watch_tried(struct table *table, const struct load *load)
{
	if (strcmp(load->spec->config.checkpoint,
		   table->spec->config.checkpoint) != 0)
		return;
	table->watch_tried = load->found;
	if (watch_same(&load->found, &table->watch_seen))
		table->watch_due = false;
}

void table_watch_end(struct table *table)
{
	if (table->watch)
		watch_remove(table->tables->watch, table->watch);
	table->watch = 0;
	table->watch_due = false;
}

static enum engram_status begin(struct table *table, struct engram_error *err)
{
	const struct config_table *config = &table->spec->config;
	struct tables *tables = table->tables;
	enum engram_status status = ENGRAM_OK;

	if (!tables->watch)
		status = watch_start(&tables->watch, tables->jobs->mailbox,
				     on_told, tables, err);
	if (!status)
		status = watch_add(tables->watch, config->checkpoint,
				   table_needs_config(config),
				   config->watch_seconds, &table->watch, err);
	return status;
}

void table_watch_follow(struct table *table)
{
	struct engram_error err;

	table_watch_end(table);
	if (table->spec->config.watch_seconds && !table->retiring &&
	    begin(table, &err))
		log_failure(LOG_WARN, "checkpoint is not watched yet", &err);
}

void table_watch_tick(struct table *table)
{
	struct engram_error err;

	/* What there was no memory or thread for before. */
	if (!table->watch && table->spec->config.watch_seconds &&
	    !table->retiring && !table->tables->stopping && begin(table, &err))
		log_failure(LOG_DEBUG, "checkpoint is not watched yet", &err);
	table_watch_step(table);
}
