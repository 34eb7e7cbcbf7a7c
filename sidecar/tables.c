/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "adopt.h"
#include "failpoint.h"
#include "figures.h"
#include "log.h"
#include "tables.h"

enum engram_status tables_init(struct tables *tables, struct jobs *jobs,
			       struct engram_control_page *page,
			       const struct config *config,
			       const struct tables_hooks *hooks,
			       struct engram_error *err)
{
	*tables = (struct tables){.jobs = jobs,
				  .page = page,
				  .backing = config->backing,
				  .lock = config->lock,
				  .adopt = config->adopt,
				  .loader = config->loader,
				  .hooks = *hooks};
	TAILQ_INIT(&tables->list);
	snprintf(tables->instance, sizeof(tables->instance), "%s",
		 config->instance);
	return memory_ledger_init(&tables->ledger, "", err);
}

static const uint64_t no_content[2];

static void remove_table(struct table *table)
{
	struct engram_control_table *slot = table->slot;

	table_watch_end(table);
	TAILQ_REMOVE(&table->tables->list, table, entry);
	engram_control_publish(slot, 0, no_content);
	engram_control_order_stores();
	engram_control_clear(slot);
	table_spec_put(table->spec);
	free(table);
}

void tables_free(struct tables *tables)
{
	struct table *table, *next;

	for (table = TAILQ_FIRST(&tables->list); table; table = next) {
		next = TAILQ_NEXT(table, entry);
		remove_table(table);
	}
	watch_stop(tables->watch);
	tables->watch = NULL;
	memory_ledger_free(&tables->ledger);
}

struct table *tables_find(struct tables *tables, const char *name)
{
	struct table *table;

	TAILQ_FOREACH(table, &tables->list, entry)
	if (strcmp(table->name, name) == 0)
		return table;
	return NULL;
}

static struct engram_control_table *free_slot(struct engram_control_page *page)
{
	unsigned int i;

	for (i = 0; i < ENGRAM_CONTROL_TABLES; i++)
		if (page->tables[i].name[0] == '\0')
			return &page->tables[i];
	return NULL;
}

/* Takes over a reference to `spec` on success. */
static enum engram_status add_table(struct tables *tables,
				    struct table_spec *spec, struct table **out,
				    struct engram_error *err)
{
	struct engram_control_table *slot = free_slot(tables->page);
	struct table *table;

	if (!slot) {
		engram_error_set(err, ENGRAM_ENOSPACE,
				 "there are %d tables already",
				 ENGRAM_CONTROL_TABLES);
		engram_error_fix(err, "unload a table that is not configured");
		return ENGRAM_ENOSPACE;
	}
	table = calloc(1, sizeof(*table));
	if (!table) {
		engram_error_set(err, ENGRAM_ENOMEM, "no memory");
		return ENGRAM_ENOMEM;
	}
	table->tables = tables;
	table->spec = spec;
	table->slot = slot;
	TAILQ_INIT(&table->old);
	snprintf(table->name, sizeof(table->name), "%s", spec->config.name);
	engram_control_clear(slot);
	memcpy(slot->name, table->name, sizeof(slot->name));
	TAILQ_INSERT_TAIL(&tables->list, table, entry);
	table_watch_follow(table);
	*out = table;
	return ENGRAM_OK;
}

enum engram_status tables_add(struct tables *tables, struct config_table *from,
			      json_t *json, struct table **out,
			      struct engram_error *err)
{
	struct table_spec *spec = table_spec_take(from, json);
	enum engram_status status;

	if (!spec)
		return engram_error_set(err, ENGRAM_ENOMEM, "no memory");
	status = add_table(tables, spec, out, err);
	if (status)
		table_spec_put(spec);
	return status;
}

void table_settle(struct table *table)
{
	bool unheld = !table->current && !table->job && !table->staged &&
		      TAILQ_EMPTY(&table->old);

	if (table->configured || !unheld)
		return;
	/* A failure stays to be read until somebody unloads the table. */
	if (table->state == ENGRAM_TABLE_FAILED && !table->retiring)
		return;
	remove_table(table);
}

void table_show(struct table *table)
{
	const struct generation *gen = table->current;

	if (table->state == ENGRAM_TABLE_READY)
		engram_control_publish(table->slot, gen->number,
				       gen->content_id);
	else
		engram_control_publish(table->slot, 0, no_content);
	FAILPOINT(publish_shown);
}

void table_set_state(struct table *table, enum engram_table_state state)
{
	if (table->state == state)
		return;
	table->state = state;
	if (state == ENGRAM_TABLE_READY || state == ENGRAM_TABLE_DRAINING ||
	    state == ENGRAM_TABLE_ABSENT)
		table_show(table);
	engram_control_store32(&table->slot->state, state);
	table->tables->hooks.changed(table->tables->hooks.ctx, table);
}

void table_lease(struct table *table, int delta, bool writable)
{
	table->leases += (unsigned int)delta;
	if (writable)
		table->writable_leases += (unsigned int)delta;
	engram_control_store32(&table->slot->leases, table->leases);
	table->changed = true;
}

void table_show_load(struct table *table, const struct job *job, bool ended)
{
	const struct loader_progress *p = &job->progress;
	struct engram_control_table *slot = table->slot;
	const uint32_t copies = atomic_load(&p->copies);

	engram_control_store64(&slot->bytes_total,
			       atomic_load(&p->bytes_total));
	engram_control_store64(&slot->bytes_done, atomic_load(&p->bytes_done));
	engram_control_store64(&slot->bytes_verified,
			       atomic_load(&p->bytes_verified) /
				       (copies ? copies : 1));
	engram_control_store64(&slot->load_rate,
			       ended ? 0 : (uint64_t)figures_of_job(job).rate);
}

void tables_tick(struct tables *tables)
{
	struct table *table, *next;

	for (table = TAILQ_FIRST(&tables->list); table; table = next) {
		struct job *job;

		next = TAILQ_NEXT(table, entry);
		table_watch_tick(table);
		table_generations_tick(table);
		table_reload_tick(table);
		job = table->job;
		if (!job || (job->kind != JOB_LOAD && job->kind != JOB_RELOAD))
			continue;
		if (table->state == ENGRAM_TABLE_LOADING &&
		    (atomic_load(&job->phase) == JOB_CHECKING ||
		     atomic_load(&job->phase) == JOB_COPYING))
			table_set_state(table, ENGRAM_TABLE_VERIFYING);
		table_show_load(table, job, false);
	}
}

/* ---- configuration ---- */

static const struct config_table *find_config(const struct config *config,
					      const char *name)
{
	size_t i;

	for (i = 0; i < config->num_tables; i++)
		if (strcmp(config->tables[i].name, name) == 0)
			return &config->tables[i];
	return NULL;
}

/* Unload, or stop loading, a table that is configured no more. */
static void retire(struct table *table)
{
	struct engram_error err;
	struct job *job;

	log_info("table is configured no more", LOG_S("table", table->name));
	table->configured = false;
	table->retiring = true;
	table->load_next = false;
	table_watch_end(table);
	if (table->job) /* its end goes on with the retiring */
		tables_cancel(table->tables, table->job);
	else if (table_unload(table, &job, &err))
		log_failure(LOG_ERROR, "unload failed", &err);
	else if (!job)
		table_settle(table);
}

/* What it has loaded, or loads, stays as it is; what it has not, follows. */
static void reconfigure(struct table *table, struct table_spec *spec)
{
	bool changed = table_spec_differs(table->spec, spec);
	bool load = spec->config.load_at_start &&
		    (changed || table->retiring ||
		     !table->spec->config.load_at_start);

	if (changed && (table->current || table->job))
		log_warn("table's configuration changed: it takes effect when "
			 "the table is reloaded",
			 LOG_S("table", table->name));
	table_spec_put(table->spec);
	table->spec = spec;
	table->configured = true;
	if (table->retiring && table->job && table->job->kind == JOB_UNLOAD)
		tables_cancel(table->tables, table->job);
	table->retiring = false;
	table->changed = true;
	table_watch_follow(table);
	if (load && table->job)
		table->load_next = true;
	else if (load)
		table_load_configured(table);
}

/* Everything that can fail: the specs, and their number. */
static enum engram_status take_specs(struct tables *tables,
				     struct config *config,
				     struct table_spec **specs,
				     struct engram_error *err)
{
	json_t *array = json_object_get(config->json, "tables");
	unsigned int slots = 0;
	struct table *table;
	size_t i;

	TAILQ_FOREACH(table, &tables->list, entry)
	slots += !find_config(config, table->name);
	if (config->num_tables + slots > ENGRAM_CONTROL_TABLES) {
		engram_error_set(err, ENGRAM_ENOSPACE,
				 "%zu tables are configured and %u more are "
				 "held; the limit is %d",
				 config->num_tables, slots,
				 ENGRAM_CONTROL_TABLES);
		engram_error_fix(err, "unload tables first");
		return ENGRAM_ENOSPACE;
	}
	for (i = 0; i < config->num_tables; i++) {
		specs[i] = table_spec_take(&config->tables[i],
					   json_array_get(array, i));
		if (!specs[i])
			return engram_error_set(err, ENGRAM_ENOMEM,
						"no memory");
	}
	return ENGRAM_OK;
}

/* A table to be loaded on demand may have been, by a former engramd. */
static void start_table(struct table *table)
{
	const struct tables *tables = table->tables;
	bool load = table->spec->config.load_at_start;

	table->adopt_only =
		!load && tables->starting && tables->adopt != ADOPT_OFF &&
		adopt_has_left(&tables->backing, tables->instance, table->name);
	if (load || table->adopt_only)
		table_load_configured(table);
}

enum engram_status tables_configure(struct tables *tables,
				    struct config *config,
				    struct engram_error *err)
{
	struct table_spec **specs =
		calloc(config->num_tables + 1, sizeof(struct table_spec *));
	struct table *table, *next;
	enum engram_status status;
	size_t i;

	if (!specs)
		return engram_error_set(err, ENGRAM_ENOMEM, "no memory");
	for (table = TAILQ_FIRST(&tables->list); table; table = next) {
		next = TAILQ_NEXT(table, entry);
		if (table->configured && !find_config(config, table->name))
			table->retiring = true;
	}
	status = take_specs(tables, config, specs, err);
	for (table = TAILQ_FIRST(&tables->list); table; table = next) {
		next = TAILQ_NEXT(table, entry);
		if (!table->configured || !table->retiring)
			continue;
		table->retiring = false;
		if (!status)
			retire(table);
	}
	for (i = 0; i < config->num_tables && specs[i]; i++) {
		struct table_spec *spec = specs[i];

		if (status) {
			table_spec_put(spec);
			continue;
		}
		table = tables_find(tables, spec->config.name);
		if (table) {
			reconfigure(table, spec);
			continue;
		}
		status = add_table(tables, spec, &table, err);
		if (status) {
			table_spec_put(spec);
			continue;
		}
		table->configured = true;
		tables->hooks.changed(tables->hooks.ctx, table);
		start_table(table);
	}
	free(specs);
	return status;
}
