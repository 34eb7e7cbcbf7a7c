/* SPDX-License-Identifier: Apache-2.0 */
#include <stdatomic.h>
#include <stdlib.h>

#include "failpoint.h"
#include "log.h"
#include "tables.h"

enum engram_status table_busy(struct table *table, struct job **job,
			      struct engram_error *err)
{
	*job = table->job;
	engram_error_set(err, ENGRAM_EBUSY,
			 "table \"%s\": job %llu (%s) is running", table->name,
			 (unsigned long long)table->job->id,
			 job_kind_name(table->job->kind));
	engram_error_fix(err, "wait for that job, or cancel it");
	return ENGRAM_EBUSY;
}

static enum engram_status no_memory(struct engram_error *err)
{
	return engram_error_set(err, ENGRAM_ENOMEM, "no memory for a job");
}

void table_load_configured(struct table *table)
{
	struct engram_error err;
	struct job *job;

	if (table_load(table, &job, &err))
		log_failure(LOG_ERROR, "load not started", &err);
}

static void unload_unwanted(struct table *table)
{
	struct engram_error err;
	struct job *job;

	if (table_unload(table, &job, &err))
		log_failure(LOG_ERROR, "unload failed", &err);
}

void table_next_step(struct table *table)
{
	bool unwanted = table->tables->stopping || table->retiring;
	bool load = table->load_next && !unwanted;

	table->load_next = false;
	if (load)
		table_load_configured(table);
	else if (unwanted && table->current)
		unload_unwanted(table);
	else
		table_settle(table);
}

void table_job_failed(struct table *table, const struct job *job)
{
	table->failed = true;
	table->error = job->error;
	log_failure(LOG_ERROR, "job failed", &job->error);
}

void table_job_started(struct table *table, struct job *job)
{
	table->job = job;
	log_info("job started", LOG_U("job", job->id),
		 LOG_S("kind", job_kind_name(job->kind)),
		 LOG_S("table", table->name));
	job->jobs->changed(job->jobs->ctx, job);
}

void table_job_ended(struct table *table, struct job *job,
		     enum engram_status status)
{
	log_info("job ended", LOG_U("job", job->id),
		 LOG_S("kind", job_kind_name(job->kind)),
		 LOG_S("table", table->name),
		 LOG_S("result", engram_status_name(status)));
	job_end(job, status);
}

static enum engram_status start_verify(struct table *table, struct job **job,
				       struct engram_error *err);

/* What was adopted without a look at its records is lent already. */
static void look_after_adopted(struct table *table, enum adopt_mode mode)
{
	const struct generation *gen = table->current;
	bool lock = table->tables->lock != MEMORY_LOCK_OFF && !gen->locked;
	struct engram_error err;
	struct job *job;

	if (mode == ADOPT_VERIFY || table->job ||
	    (mode == ADOPT_TRUST && !lock))
		return;
	table->verify_lock = lock ? table->tables->lock : MEMORY_LOCK_OFF;
	table->verify_records = mode == ADOPT_BACKGROUND;
	table->verify_adopted = true;
	if (start_verify(table, &job, &err))
		log_failure(LOG_WARN, "adopted table not looked after", &err);
}

/* ---- load ---- */

static enum engram_status run_load(struct job *job, struct engram_error *err)
{
	struct table *table = job->arg;

	return load_build(table->building, job, err);
}

static void finish_load(struct job *job, enum engram_status status)
{
	struct table *table = job->arg;
	struct load *load = table->building;

	table->building = NULL;
	table->job = NULL;
	table_watch_tried(table, load);
	table_show_load(table, job, true);
	if (!status) {
		load->gen->spec = load->spec;
		load->spec = NULL;
		job->generation = load->gen->number;
		engram_control_add64(&table->slot->loads, 1);
		table_publish(table, load->gen);
	} else if (status == ENGRAM_ECANCELED ||
		   (load->adopt_only && status == ENGRAM_ENOTFOUND)) {
		table_set_state(table, ENGRAM_TABLE_ABSENT);
	} else {
		table_job_failed(table, job);
		engram_control_add64(&table->slot->load_failures, 1);
		table_set_state(table, ENGRAM_TABLE_FAILED);
	}
	table_spec_put(load->spec);
	table_job_ended(table, job, status);
	table_next_step(table);
	if (!status && table->current == load->gen && load->gen->adopted)
		look_after_adopted(table, load->adopt);
	free(load);
}

enum engram_status table_load(struct table *table, struct job **job,
			      struct engram_error *err)
{
	struct tables *tables = table->tables;
	enum engram_status status;
	struct load *load;

	*job = NULL;
	if (table->job)
		return table_busy(table, job, err);
	if (table->current)
		return ENGRAM_OK;
	load = calloc(1, sizeof(*load));
	if (!load)
		return no_memory(err);
	*load = (struct load){.instance = tables->instance,
			      .backing = tables->backing,
			      .lock = tables->lock,
			      .options = tables->loader,
			      .ledger = &tables->ledger,
			      .spec = table->spec,
			      .number = table->last_generation + 1,
			      .adopt = tables->adopt,
			      .adopt_only = table->adopt_only};
	table->adopt_only = false;
	*job = job_new(tables->jobs, JOB_LOAD, table->name, table);
	if (!*job) {
		free(load);
		return no_memory(err);
	}
	table->building = load;
	status = job_start(*job, run_load, finish_load, err);
	if (status) {
		job_discard(*job);
		*job = NULL;
		table->building = NULL;
		free(load);
		return status;
	}
	table_spec_get(load->spec);
	table_job_started(table, *job);
	table_set_state(table, ENGRAM_TABLE_LOADING);
	return ENGRAM_OK;
}

/* ---- unload ---- */

static enum engram_status run_free(struct job *job, struct engram_error *err)
{
	struct table *table = job->arg;

	(void)err;
	FAILPOINT(free_begin);
	generation_release(table->freeing, table->tables->keep);
	FAILPOINT(free_done);
	return ENGRAM_OK;
}

static void finish_free(struct job *job, enum engram_status status)
{
	struct table *table = job->arg;

	generation_delete(table->freeing);
	table->freeing = NULL;
	table->job = NULL;
	table->failed = false;
	atomic_store(&job->progress.bytes_done,
		     atomic_load(&job->progress.bytes_total));
	table_set_state(table, ENGRAM_TABLE_ABSENT);
	table_job_ended(table, job, status);
	table_next_step(table);
}

/* Nobody uses the generation any more. */
static enum engram_status start_freeing(struct table *table, struct job *job,
					struct engram_error *err)
{
	enum engram_status status;

	table->freeing = table->current;
	table->current->idle = NULL;
	table->current = NULL;
	job_set_phase(job, JOB_FREEING);
	status = job_start(job, run_free, finish_free, err);
	if (status) {
		table->current = table->freeing;
		table->freeing = NULL;
	}
	return status;
}

/* Back to ready; the job has ended with `status`. */
static void undo_unload(struct table *table, enum engram_status status)
{
	struct job *job = table->job;

	table->job = NULL;
	table->current->idle = NULL;
	if (status != ENGRAM_ECANCELED)
		table_job_failed(table, job);
	table_set_state(table, ENGRAM_TABLE_READY);
	table_job_ended(table, job, status);
}

static bool may_free(const struct table *table)
{
	return !table->current->users && TAILQ_EMPTY(&table->old);
}

void table_unload_step(struct table *table)
{
	struct job *job = table->job;
	enum engram_status status;

	if (!job || job->kind != JOB_UNLOAD || !table->current ||
	    !may_free(table))
		return;
	status = start_freeing(table, job, &job->error);
	if (status)
		undo_unload(table, status);
}

static void on_idle(struct generation *gen)
{
	table_unload_step(gen->table);
}

enum engram_status table_unload(struct table *table, struct job **job,
				struct engram_error *err)
{
	enum engram_status status = ENGRAM_OK;
	struct generation *gen = table->current;

	*job = NULL;
	if (table->job)
		return table_busy(table, job, err);
	if (!gen) {
		table->failed = false;
		table_set_state(table, ENGRAM_TABLE_ABSENT);
		return ENGRAM_OK;
	}
	*job = job_new(table->tables->jobs, JOB_UNLOAD, table->name, table);
	if (!*job)
		return no_memory(err);
	if (table->staged)
		table_discard_staged(table, NULL);
	table_let_old_go(table);
	job_set_phase(*job, JOB_WAITING);
	atomic_store(&(*job)->progress.bytes_total, gen->bytes);
	if (may_free(table))
		status = start_freeing(table, *job, err);
	else
		gen->idle = on_idle;
	if (status) {
		job_discard(*job);
		*job = NULL;
		return status;
	}
	table_job_started(table, *job);
	table_set_state(table, ENGRAM_TABLE_DRAINING);
	return ENGRAM_OK;
}

/* ---- verify ---- */

static enum engram_status run_verify(struct job *job, struct engram_error *err)
{
	struct table *table = job->arg;
	enum engram_status status;

	status = load_lock(table->current, table->verify_lock, job, err);
	if (!status && table->verify_records)
		status = load_verify(table->current, table->current->num_copies,
				     table->verify_threads, job, err);
	if (!status && table->verify_records)
		status = load_compare_manifest(table->current, err);
	if (status)
		engram_error_context(err, "table \"%s\"", table->name);
	return status;
}

/* Nobody may get damaged records any more: load it anew, once those who have
 * it have let go. */
static void replace_adopted(struct table *table)
{
	log_warn("adopted table is damaged: it is loaded",
		 LOG_S("table", table->name));
	unload_unwanted(table);
	table->load_next = table->job != NULL;
}

static void finish_verify(struct job *job, enum engram_status status)
{
	struct table *table = job->arg;
	bool replace = table->verify_adopted && status == ENGRAM_ECHECKSUM;

	table->job = NULL;
	if (status && status != ENGRAM_ECANCELED)
		table_job_failed(table, job);
	table->changed = true;
	table_job_ended(table, job, status);
	if (replace && !table->tables->stopping && !table->retiring)
		replace_adopted(table);
	else
		table_next_step(table);
}

static enum engram_status start_verify(struct table *table, struct job **job,
				       struct engram_error *err)
{
	const struct engram_segment_header *h;
	enum engram_status status;
	uint64_t bytes = 0;
	uint32_t i;

	*job = job_new(table->tables->jobs, JOB_VERIFY, table->name, table);
	if (!*job)
		return no_memory(err);
	for (i = 0; i < table->current->num_layers; i++) {
		h = table->current->layers[i].header;
		bytes += h->rows * engram_segment_record_bytes(h);
	}
	atomic_store(&(*job)->progress.bytes_total, bytes);
	job_set_phase(*job, JOB_CHECKING);
	table->verify_threads = table->tables->loader.threads;
	status = job_start(*job, run_verify, finish_verify, err);
	if (status) {
		job_discard(*job);
		*job = NULL;
		return status;
	}
	table_job_started(table, *job);
	return ENGRAM_OK;
}

enum engram_status table_verify(struct table *table, struct job **job,
				struct engram_error *err)
{
	*job = NULL;
	if (table->job)
		return table_busy(table, job, err);
	if (!table->current) {
		engram_error_set(err, ENGRAM_ENOTREADY,
				 "table \"%s\" is %s: there is nothing to "
				 "verify",
				 table->name,
				 engram_table_state_name(table->state));
		engram_error_fix(err, "load it first");
		return ENGRAM_ENOTREADY;
	}
	table->verify_lock = MEMORY_LOCK_OFF;
	table->verify_records = true;
	table->verify_adopted = false;
	return start_verify(table, job, err);
}

/* ---- all ---- */

void tables_cancel(struct tables *tables, struct job *job)
{
	struct table *table = tables_find(tables, job->table);

	if (job->state != JOB_RUNNING)
		return;
	atomic_store(&job->progress.cancel, true);
	if (job->threaded || !table || table->job != job)
		return;
	if (job->kind == JOB_UNLOAD)
		undo_unload(table, ENGRAM_ECANCELED);
	else if (job->kind == JOB_RELOAD)
		table_reload_undo(table, ENGRAM_ECANCELED);
}

void tables_stop(struct tables *tables)
{
	struct table *table, *next;

	tables->stopping = true;
	for (table = TAILQ_FIRST(&tables->list); table; table = next) {
		next = TAILQ_NEXT(table, entry);
		table_let_old_go(table);
		if (!table->job)
			table_next_step(table);
		else if (table->job->kind != JOB_UNLOAD)
			tables_cancel(tables, table->job);
	}
}

bool tables_stopped(const struct tables *tables)
{
	const struct table *table;

	TAILQ_FOREACH(table, &tables->list, entry)
	if (table->job || table->current || table->staged ||
	    !TAILQ_EMPTY(&table->old))
		return false;
	return true;
}
