/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which generation of a table is lent, and what becomes of the others: a
 * superseded one is kept for a rollback as long as the table's `reload` says,
 * and freed by a job of its own once nobody holds it.
 */
#include <inttypes.h>
#include <string.h>

#include "clock.h"
#include "failpoint.h"
#include "log.h"
#include "tables.h"

/* ---- freeing ---- */

static enum engram_status run_free(struct job *job, struct engram_error *err)
{
	struct generation *gen = job->arg;

	(void)err;
	FAILPOINT(old_free_begin);
	generation_release(gen, false);
	FAILPOINT(old_free_done);
	return ENGRAM_OK;
}

static void finish_free(struct job *job, enum engram_status status)
{
	struct generation *gen = job->arg;
	struct table *table = gen->table;

	TAILQ_REMOVE(&table->old, gen, entry);
	generation_delete(gen);
	atomic_store(&job->progress.bytes_done,
		     atomic_load(&job->progress.bytes_total));
	table->changed = true;
	table_job_ended(table, job, status);
	table_unload_step(table);
	table_reload_step(table);
	if (!table->job)
		table_settle(table);
}

static bool is_due(const struct generation *gen)
{
	const struct table *table = gen->table;

	if (gen->users || gen->freeing)
		return false;
	return gen->unwanted ||
	       clock_seconds_since(gen->since_ns) >=
		       table->spec->config.reload.retain_seconds;
}

/* Without a thread or memory for it now, at a later tick. */
static void free_if_due(struct generation *gen)
{
	struct table *table = gen->table;
	struct engram_error err;
	struct job *job;

	if (!is_due(gen))
		return;
	job = job_new(table->tables->jobs, JOB_FREE, table->name, gen);
	if (!job)
		return;
	job->generation = gen->number;
	atomic_store(&job->progress.bytes_total, gen->bytes);
	job_set_phase(job, JOB_FREEING);
	if (job_start(job, run_free, finish_free, &err)) {
		log_failure(LOG_WARN, "generation not freed yet", &err);
		job_discard(job);
		return;
	}
	gen->freeing = job;
	log_info("job started", LOG_U("job", job->id), LOG_S("kind", "free"),
		 LOG_S("table", table->name), LOG_U("generation", gen->number));
	job->jobs->changed(job->jobs->ctx, job);
}

void table_supersede(struct table *table, struct generation *gen, bool unwanted)
{
	gen->since_ns = clock_ns();
	gen->unwanted = unwanted;
	gen->overdue = false;
	gen->idle = free_if_due;
	TAILQ_INSERT_TAIL(&table->old, gen, entry);
	free_if_due(gen);
}

void table_let_old_go(struct table *table)
{
	struct generation *gen;

	TAILQ_FOREACH(gen, &table->old, entry)
	{
		gen->unwanted = true;
		free_if_due(gen);
	}
}

static void report_overdue(struct generation *gen)
{
	const struct tables_hooks *hooks = &gen->table->tables->hooks;
	char holders[512];

	gen->overdue = true;
	hooks->holders(hooks->ctx, gen, holders, sizeof(holders));
	log_warn("superseded generation is still held",
		 LOG_S("table", gen->table->name),
		 LOG_U("generation", gen->number), LOG_U("leases", gen->leases),
		 LOG_S("by", holders));
	hooks->overdue(hooks->ctx, gen);
}

void table_generations_tick(struct table *table)
{
	struct generation *gen;

	TAILQ_FOREACH(gen, &table->old, entry)
	{
		if (gen->leases && !gen->overdue &&
		    clock_seconds_since(gen->since_ns) >=
			    table->spec->config.reload.drain_seconds)
			report_overdue(gen);
		free_if_due(gen);
	}
}

/* ---- publishing ---- */

void table_publish(struct table *table, struct generation *gen)
{
	struct generation *was = table->current;

	FAILPOINT(publish_begin);
	gen->table = table;
	gen->idle = NULL;
	table->current = gen;
	/* The configuration stays what a configured table is loaded from. */
	if (!table->configured && gen->spec != table->spec) {
		table_spec_put(table->spec);
		table->spec = table_spec_get(gen->spec);
		table_watch_follow(table);
	}
	table->failed = false;
	if (gen->number > table->last_generation)
		table->last_generation = gen->number;
	if (table->state != ENGRAM_TABLE_READY) {
		table_set_state(table, ENGRAM_TABLE_READY);
	} else {
		table_show(table);
		table->tables->hooks.changed(table->tables->hooks.ctx, table);
	}
	log_info("table ready", LOG_S("table", table->name),
		 LOG_U("generation", gen->number),
		 LOG_S("adopted", gen->adopted ? "yes" : "no"),
		 LOG_U("bytes", gen->bytes),
		 LOG_S("engine", loader_engine_name(gen->report.engine)),
		 LOG_S("direct", gen->report.direct ? "yes" : "no"),
		 LOG_S("locked", gen->locked ? "yes" : "no"));
	/* Nobody is given it any more. */
	if (was)
		table_supersede(table, was, false);
}

static enum engram_status check_fits(const struct table *table,
				     const struct generation *gen,
				     struct engram_error *err)
{
	const struct generation *was = table->current;
	enum engram_status status = ENGRAM_OK;
	uint32_t i;

	if (!was->leases)
		return ENGRAM_OK;
	if (gen->num_layers < was->num_layers)
		status = engram_error_set(err, ENGRAM_EGEOMETRY,
					  "there are %u layers where there "
					  "were %u",
					  gen->num_layers, was->num_layers);
	for (i = 0; i < gen->num_layers && !status; i++) {
		const struct engram_segment_header *h = gen->layers[i].header;

		status = generation_fits(was, i, h, h->token_map.count, err);
	}
	return status;
}

enum engram_status table_publish_fit(struct table *table,
				     struct generation *gen,
				     struct engram_error *err)
{
	enum engram_status status = check_fits(table, gen, err);

	if (!status)
		table_publish(table, gen);
	else
		table_refused(table, err);
	return status;
}

void table_refused(const struct table *table, struct engram_error *err)
{
	engram_error_context(err,
			     "table \"%s\": clients that hold generation "
			     "%" PRIu64 " can not change over",
			     table->name, table->current->number);
	engram_error_fix(err, "have them detach (`engramctl clients` shows "
			      "them), or set reload.mode to \"drain_first\"");
}

/* ---- held, discarded, taken back ---- */

enum engram_status table_publish_staged(struct table *table,
					const uint64_t *content_id,
					struct job **job,
					struct engram_error *err)
{
	struct generation *gen = table->staged;
	enum engram_status status;

	*job = NULL;
	if (table->job)
		return table_busy(table, job, err);
	if (!gen) {
		engram_error_set(err, ENGRAM_ENOTREADY,
				 "table \"%s\" holds no generation that could "
				 "be published",
				 table->name);
		engram_error_fix(err, "build one with `reload` and \"hold\"");
		return ENGRAM_ENOTREADY;
	}
	if (content_id &&
	    memcmp(content_id, gen->content_id, sizeof(gen->content_id)) != 0) {
		engram_error_set(err, ENGRAM_EINVAL,
				 "generation %" PRIu64 " of table \"%s\", "
				 "which is held, has another content id",
				 gen->number, table->name);
		engram_error_fix(err, "see `tables`; discard it if it is not "
				      "what the fleet shall have");
		engram_error_path(err, "content_id");
		return ENGRAM_EINVAL;
	}
	status = table_publish_fit(table, gen, err);
	if (!status)
		table->staged = NULL;
	return status;
}

enum engram_status table_discard_staged(struct table *table,
					struct engram_error *err)
{
	struct generation *gen = table->staged;

	if (!gen) {
		engram_error_set(err, ENGRAM_ENOTREADY,
				 "table \"%s\" holds no generation that could "
				 "be discarded",
				 table->name);
		return ENGRAM_ENOTREADY;
	}
	table->staged = NULL;
	table_supersede(table, gen, true);
	table->changed = true;
	return ENGRAM_OK;
}

struct generation *table_previous(const struct table *table)
{
	struct generation *gen;

	TAILQ_FOREACH_REVERSE(gen, &table->old, generation_list, entry)
	if (!gen->freeing && !gen->unwanted)
		return gen;
	return NULL;
}

enum engram_status table_rollback(struct table *table, struct job **job,
				  struct engram_error *err)
{
	struct generation *gen = table_previous(table);
	enum engram_status status;

	*job = NULL;
	if (table->job)
		return table_busy(table, job, err);
	if (!table->current || !gen) {
		engram_error_set(err, ENGRAM_EGONE,
				 "table \"%s\" has no generation to go back to",
				 table->name);
		engram_error_fix(err, "set reload.retain_seconds to keep the "
				      "one before; now reload the checkpoint "
				      "that shall be lent");
		return ENGRAM_EGONE;
	}
	status = check_fits(table, gen, err);
	if (status) {
		table_refused(table, err);
		return status;
	}
	TAILQ_REMOVE(&table->old, gen, entry);
	table_publish(table, gen);
	return ENGRAM_OK;
}
