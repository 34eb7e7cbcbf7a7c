/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replacing a table while it is lent.  `beside` builds the next generation
 * while the old one is lent, and publishes it by one store.  `drain_first`, for
 * where two copies do not fit, has a look at the checkpoint, withdraws the
 * table, waits for its leases, frees it, and then loads.  `in_place` waits
 * until nobody reads, and loads into the memory that is there, which clients
 * keep mapped and registered.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "clock.h"
#include "failpoint.h"
#include "log.h"
#include "tables.h"

static void drop_load(struct table *table)
{
	struct load *load = table->building;

	table->building = NULL;
	table_watch_tried(table, load);
	table_spec_put(load->spec);
	if (load->current)
		generation_put(load->current);
	free(load);
}

/* The job is over; what the table has now stays. */
static void end_reload(struct table *table, enum engram_status status)
{
	struct job *job = table->job;

	table->job = NULL;
	if (status && status != ENGRAM_ECANCELED) {
		table_job_failed(table, job);
		engram_control_add64(&table->slot->load_failures, 1);
	}
	drop_load(table);
	if (!table->current)
		table_set_state(table, status == ENGRAM_ECANCELED || !status
					       ? ENGRAM_TABLE_ABSENT
					       : ENGRAM_TABLE_FAILED);
	else
		table_set_state(table, ENGRAM_TABLE_READY);
	table->changed = true;
	table_job_ended(table, job, status);
	table_next_step(table);
}

/* For want of memory: what would help. */
static void explain(const struct table *table, enum engram_status status,
		    struct engram_error *err)
{
	const struct tables_hooks *hooks = &table->tables->hooks;
	const struct generation *gen;
	char holders[512] = "";

	if ((status != ENGRAM_ENOSPACE && status != ENGRAM_EMEMLOCK) ||
	    !table->current || table->building->in_place)
		return;
	engram_error_context(err, "a second copy beside generation %" PRIu64,
			     table->current->number);
	TAILQ_FOREACH(gen, &table->old, entry)
	{
		if (!gen->leases)
			continue;
		hooks->holders(hooks->ctx, gen, holders, sizeof(holders));
		engram_error_fix(err,
				 "generation %" PRIu64 " is still held "
				 "by %s: have them change over",
				 gen->number, holders);
		return;
	}
	engram_error_fix(err, "make room, or set reload.mode to "
			      "\"in_place\" or \"drain_first\"");
}

static enum engram_status take(struct table *table, struct job *job,
			       struct engram_error *err)
{
	struct load *load = table->building;
	struct generation *gen = load->gen;
	enum engram_status status = ENGRAM_OK;

	gen->table = table;
	gen->spec = table_spec_get(load->spec);
	job->generation = gen->number;
	table->last_generation = gen->number;
	engram_control_add64(&table->slot->loads, 1);
	if (table->tables->stopping || table->retiring) {
		table_supersede(table, gen, true);
		return engram_error_set(err, ENGRAM_ECANCELED,
					"the table is not wanted any more");
	}
	if (table->hold) {
		table->staged = gen;
		log_info("generation is held until it is published",
			 LOG_S("table", table->name),
			 LOG_U("generation", gen->number));
		return ENGRAM_OK;
	}
	if (table->current)
		status = table_publish_fit(table, gen, err);
	else
		table_publish(table, gen);
	if (status)
		table_supersede(table, gen, true);
	return status;
}

static void refused(const struct table *table, struct engram_error *err)
{
	if (!table->building->in_place) {
		table_refused(table, err);
		return;
	}
	engram_error_context(err,
			     "table \"%s\": generation %" PRIu64
			     " can not be replaced in place",
			     table->name, table->current->number);
	engram_error_fix(err, "unload the table and load it, or set "
			      "reload.mode to \"drain_first\"");
}

static enum engram_status run_build(struct job *job, struct engram_error *err)
{
	struct table *table = job->arg;

	return load_build(table->building, job, err);
}

static void finish_build(struct job *job, enum engram_status status)
{
	struct table *table = job->arg;
	const struct load *load = table->building;

	table_show_load(table, job, true);
	if (!status && load->unchanged) {
		job->unchanged = true;
		job->generation = load->current->number;
		table->failed = false;
	} else if (!status) {
		status = take(table, job, &job->error);
	} else {
		explain(table, status, &job->error);
		if (status == ENGRAM_EGEOMETRY && table->current)
			refused(table, &job->error);
	}
	end_reload(table, status);
}

/* ---- drain first, in place ---- */

static enum engram_status run_replace(struct job *job, struct engram_error *err)
{
	struct table *table = job->arg;

	if (!table->building->in_place) {
		FAILPOINT(free_begin);
		generation_release(table->freeing, false);
		FAILPOINT(free_done);
	}
	job_set_phase(job, JOB_READING);
	return load_build(table->building, job, err);
}

/* Its memory is another's.  Leases that have parked outlive it. */
static void spent(struct table *table, struct generation *gen)
{
	gen->bytes = 0;
	table_supersede(table, gen, true);
}

static void finish_replace(struct job *job, enum engram_status status)
{
	struct table *table = job->arg;
	struct generation *was = table->freeing;

	table->freeing = NULL;
	if (!table->building->in_place)
		generation_delete(was);
	else if (was->layers[0].writer)
		table->current = was; /* nothing of it was touched */
	else
		spent(table, was);
	finish_build(job, status);
}

static void on_drained(struct generation *gen)
{
	table_reload_step(gen->table);
}

/* The checkpoint can be loaded, as far as can be seen: clients shall let go. */
static void start_draining(struct table *table)
{
	struct load *load = table->building;

	generation_put(load->current);
	load->current = NULL;
	load->look_only = false;
	table_let_old_go(table);
	job_set_phase(table->job, JOB_WAITING);
	table->current->idle = on_drained;
	table_set_state(table, ENGRAM_TABLE_DRAINING);
	table_reload_step(table);
}

static void finish_look(struct job *job, enum engram_status status)
{
	struct table *table = job->arg;

	if (status || table->building->unchanged ||
	    atomic_load(&job->progress.cancel))
		finish_build(job, status ? status
				  : table->building->unchanged
					  ? ENGRAM_OK
					  : ENGRAM_ECANCELED);
	else
		start_draining(table);
}

/* Who reads without a lease sees within settle_seconds that there is nothing to
 * read.  Whose connection has just broken may have waited on it till then. */
static bool is_settled(const struct table *table)
{
	const uint64_t asked = atomic_load(&table->job->phase_start_ns);
	const uint64_t lost = table->current->untracked_ns;

	return !lost || clock_seconds_since(lost > asked ? lost : asked) >=
				table->spec->config.reload.settle_seconds;
}

/* Has everybody let go, or at least stopped reading? */
static bool is_let_go(const struct table *table)
{
	const struct generation *gen = table->current;

	if (!table->building->in_place)
		return !gen->users && TAILQ_EMPTY(&table->old);
	return gen->users == gen->parked && is_settled(table);
}

static bool drains(const struct table *table)
{
	return table->job && table->job->kind == JOB_RELOAD &&
	       table->state == ENGRAM_TABLE_DRAINING;
}

void table_reload_tick(struct table *table)
{
	const struct tables_hooks *hooks = &table->tables->hooks;
	struct job *job = table->job;
	uint32_t limit = table->spec->config.reload.drain_seconds;
	char holders[512];

	if (!drains(table) || job->threaded)
		return;
	table_reload_step(table);
	if (table->job != job || job->threaded || !table->current ||
	    clock_seconds_since(atomic_load(&job->phase_start_ns)) < limit)
		return;
	hooks->holders(hooks->ctx, table->current, holders, sizeof(holders));
	engram_error_set(&job->error, ENGRAM_ETIMEDOUT,
			 "table \"%s\" is still held after %u s by %s",
			 table->name, limit,
			 *holders		     ? holders
			 : table->building->in_place ? "clients that were lost"
						     : "clients of a former "
						       "generation");
	engram_error_fix(&job->error,
			 "have them %s when engram_table_poll is 0, or raise "
			 "reload.drain_seconds",
			 table->building->in_place ? "detach or park"
						   : "detach");
	table_reload_undo(table, ENGRAM_ETIMEDOUT);
}

/* ---- all ---- */

/* Superseded generations that are on their way out give their memory first. */
static bool frees(const struct table *table)
{
	const struct generation *gen;

	TAILQ_FOREACH(gen, &table->old, entry)
	if (gen->freeing)
		return true;
	return false;
}

void table_reload_step(struct table *table)
{
	struct job *job = table->job;
	enum engram_status status;

	if (!job || job->kind != JOB_RELOAD || job->threaded)
		return;
	if (drains(table)) {
		if (!is_let_go(table))
			return;
		table->freeing = table->current;
		table->freeing->idle = NULL;
		table->current = NULL;
		if (table->building->in_place)
			table->building->over = table->freeing;
		else
			job_set_phase(job, JOB_FREEING);
		status = job_start(job, run_replace, finish_replace,
				   &job->error);
		if (!status) {
			table_set_state(table, ENGRAM_TABLE_LOADING);
			return;
		}
		table->current = table->freeing;
		table->freeing = NULL;
	} else {
		if (frees(table))
			return;
		job_set_phase(job, JOB_READING);
		status = job_start(job, run_build,
				   table->building->look_only ? finish_look
							      : finish_build,
				   &job->error);
		if (!status)
			return;
	}
	table_reload_undo(table, status);
}

void table_reload_undo(struct table *table, enum engram_status status)
{
	if (table->current)
		table->current->idle = NULL;
	end_reload(table, status);
}

static enum engram_status check_terms(struct table *table,
				      const struct reload_terms *terms,
				      struct engram_error *err)
{
	if (!table->current) {
		engram_error_set(err, ENGRAM_ENOTREADY,
				 "table \"%s\" is %s: there is nothing to "
				 "replace",
				 table->name,
				 engram_table_state_name(table->state));
		engram_error_fix(err, "load it");
		return ENGRAM_ENOTREADY;
	}
	if (table->staged) {
		engram_error_set(err, ENGRAM_EEXIST,
				 "generation %" PRIu64 " of table \"%s\" is "
				 "held already",
				 table->staged->number, table->name);
		engram_error_fix(err, "`publish` or `discard` it first");
		return ENGRAM_EEXIST;
	}
	if (terms->hold && table->spec->config.reload.mode != RELOAD_BESIDE) {
		engram_error_set(err, ENGRAM_EUNSUPPORTED,
				 "a generation can be held only beside the "
				 "other, and reload.mode of table \"%s\" is "
				 "not \"beside\"",
				 table->name);
		engram_error_fix(err, "change reload.mode, or leave \"hold\" "
				      "out");
		engram_error_path(err, "hold");
		return ENGRAM_EUNSUPPORTED;
	}
	return ENGRAM_OK;
}

static struct load *new_load(struct table *table,
			     const struct reload_terms *terms)
{
	struct tables *tables = table->tables;
	struct load *load = calloc(1, sizeof(*load));
	const enum reload_mode mode = table->spec->config.reload.mode;

	if (!load)
		return NULL;
	*load = (struct load){.instance = tables->instance,
			      .backing = tables->backing,
			      .lock = tables->lock,
			      .options = tables->loader,
			      .ledger = &tables->ledger,
			      .number = table->last_generation + 1,
			      .adopt = ADOPT_OFF,
			      .current = table->current,
			      .force = terms->force,
			      .fit = mode == RELOAD_BESIDE
					     ? table->current->leases
					     : mode == RELOAD_IN_PLACE,
			      .look_only = mode != RELOAD_BESIDE,
			      .in_place = mode == RELOAD_IN_PLACE};
	load->spec = terms->spec ? terms->spec : table_spec_get(table->spec);
	generation_get(load->current);
	return load;
}

enum engram_status table_reload(struct table *table,
				const struct reload_terms *terms,
				struct job **job, struct engram_error *err)
{
	enum engram_status status;

	*job = NULL;
	status = table->job ? table_busy(table, job, err)
			    : check_terms(table, terms, err);
	if (status) {
		table_spec_put(terms->spec);
		return status;
	}
	*job = job_new(table->tables->jobs, JOB_RELOAD, table->name, table);
	table->building = *job ? new_load(table, terms) : NULL;
	if (!table->building) {
		if (*job)
			job_discard(*job);
		*job = NULL;
		table_spec_put(terms->spec);
		return engram_error_set(err, ENGRAM_ENOMEM,
					"no memory for a job");
	}
	table->hold = terms->hold;
	job_set_phase(*job, JOB_WAITING);
	table_job_started(table, *job);
	/* A rollback is to the generation before, not to the one before that.
	 */
	table_let_old_go(table);
	table_reload_step(table);
	return ENGRAM_OK;
}
