/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tables and their life cycle.  Loop thread only.
 *
 *   absent -> loading -> verifying -> ready -> draining -> absent
 *                   \-> failed
 *
 * A table has a current generation, which is lent, and at most one load that
 * builds the next, beside it or, for a reload that drains first, after it.
 * What was superseded goes once nobody holds it.  Its state is what the control
 * page shows.
 */
#ifndef ENGRAMD_TABLES_H
#define ENGRAMD_TABLES_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "config.h"
#include "engram_control.h"
#include "generation.h"
#include "jobs.h"
#include "load.h"
#include "memory.h"
#include "spec.h"
#include "watch.h"

struct tables;

struct table {
	TAILQ_ENTRY(table) entry;
	struct tables *tables;
	char name[ENGRAM_NAME_MAX + 1];
	struct table_spec *spec;
	bool configured; /* named in the configuration */
	bool retiring;	 /* taken out of it; goes once it is free */
	bool load_next;	 /* named in it again: load once `job` has ended */
	bool adopt_only; /* the next load takes over what was left, or none */
	enum engram_table_state state;
	struct generation *current; /* ready, or draining */
	struct generation *staged;  /* built, and held until it is published */
	struct generation_list old; /* lent no more; the newest is last */
	struct load *building;
	struct generation *freeing;
	bool hold; /* of a running reload job: stage what it builds */
	/* of a running verify job */
	uint32_t verify_threads;
	enum memory_lock verify_lock; /* first: pin what was adopted */
	bool verify_records;
	bool verify_adopted; /* if they are damaged, load them */
	struct job *job;     /* the running one */
	uint64_t last_generation;
	bool failed; /* `error` is the last failure */
	struct engram_error error;
	unsigned int leases;
	unsigned int writable_leases; /* of these */
	bool changed;		      /* for events, see events.c */
	/* table_watch.c */
	uint64_t watch; /* of tables->watch, 0: its checkpoint is not watched */
	struct watch_identity watch_seen, watch_tried;
	bool watch_due; /* what was seen is to be loaded */
	struct engram_control_table *slot;
};

TAILQ_HEAD(table_list, table);

/* What the tables ask of who knows the clients. */
struct tables_hooks {
	void (*changed)(void *ctx, struct table *table);
	/* A superseded generation has been held too long. */
	void (*overdue)(void *ctx, struct generation *gen);
	/* Who holds it, as text: "" for nobody. */
	void (*holders)(void *ctx, const struct generation *gen, char *out,
			size_t size);
	void *ctx;
};

struct tables {
	struct table_list list;
	struct jobs *jobs;
	struct engram_control_page *page;
	struct memory_ledger ledger;
	/* what loads use; `backing` and `instance` never change */
	char instance[ENGRAM_NAME_MAX + 1];
	struct engram_backing backing;
	enum memory_lock lock;
	enum adopt_mode adopt;
	bool starting; /* segments of a former engramd may lie about */
	bool keep;     /* leave segments to the next engramd */
	struct loader_options loader;
	bool stopping;
	struct tables_hooks hooks;
	struct watch *watch; /* NULL until a table's checkpoint is watched */
};

enum engram_status tables_init(struct tables *tables, struct jobs *jobs,
			       struct engram_control_page *page,
			       const struct config *config,
			       const struct tables_hooks *hooks,
			       struct engram_error *err);
/* Nothing may be running or held any more. */
void tables_free(struct tables *tables);

struct table *tables_find(struct tables *tables, const char *name);

/*
 * Take the tables of a configuration (their contents move out of it): new
 * ones appear; ones no longer named are unloaded.  Where "load" is "start",
 * what is new, or is not loaded and has changed, is loaded.
 * ENGRAM_ENOMEM or ENGRAM_ENOSPACE (more than the control page holds) leave
 * all as it was.
 */
enum engram_status tables_configure(struct tables *tables,
				    struct config *config,
				    struct engram_error *err);
/* A table that only a `load` request knows; takes over the contents. */
enum engram_status tables_add(struct tables *tables, struct config_table *from,
			      json_t *json, struct table **out,
			      struct engram_error *err);
/* A table nobody names and nobody holds is forgotten. */
void table_settle(struct table *table);

/*
 * Start a job.  *job is NULL where there is nothing to do.  ENGRAM_EBUSY: the
 * running one is in *job.
 */
enum engram_status table_load(struct table *table, struct job **job,
			      struct engram_error *err);
enum engram_status table_unload(struct table *table, struct job **job,
				struct engram_error *err);
enum engram_status table_verify(struct table *table, struct job **job,
				struct engram_error *err);

struct reload_terms {
	struct table_spec *spec; /* NULL: as the table's; taken over */
	bool hold;		 /* publish it only when told */
	bool force;		 /* even if the checkpoint is what it was */
};

/*
 * Build the next generation and publish it.  ENGRAM_ENOTREADY: there is none
 * to be replaced; ENGRAM_EEXIST: one is held already.  Whatever is returned,
 * terms->spec has been taken.
 */
enum engram_status table_reload(struct table *table,
				const struct reload_terms *terms,
				struct job **job, struct engram_error *err);
/* Lend what a reload has built and held; with `content_id`, only that. */
enum engram_status table_publish_staged(struct table *table,
					const uint64_t *content_id,
					struct job **job,
					struct engram_error *err);
enum engram_status table_discard_staged(struct table *table,
					struct engram_error *err);
/* Lend the generation before again, ENGRAM_EGONE if it is not kept. */
enum engram_status table_rollback(struct table *table, struct job **job,
				  struct engram_error *err);

/* Ask a running job to end.  An unload that waits for leases ends at once,
 * and its table is ready again; one that frees memory goes on. */
void tables_cancel(struct tables *tables, struct job *job);

/* Leases come and go. */
void table_lease(struct table *table, int delta, bool writable);

/* The generation that a rollback would lend, or NULL. */
struct generation *table_previous(const struct table *table);

/* Free everything; tables_stopped once that is done.  Leases have to be
 * dropped first. */
void tables_stop(struct tables *tables);
bool tables_stopped(const struct tables *tables);

/* Show a load's phase and bytes in the control page; once a second. */
void tables_tick(struct tables *tables);
/* A load's bytes and rate in the control page, and once it has ended. */
void table_show_load(struct table *table, const struct job *job, bool ended);

/* ---- between tables.c and table_*.c ---- */

/* Show what is current, if it is ready, in the control page. */
void table_show(struct table *table);
void table_set_state(struct table *table, enum engram_table_state state);
/* A load that the configuration asks for; a failure is logged. */
void table_load_configured(struct table *table);

/* table_jobs.c */
enum engram_status table_busy(struct table *table, struct job **job,
			      struct engram_error *err);
void table_job_started(struct table *table, struct job *job);
void table_job_ended(struct table *table, struct job *job,
		     enum engram_status status);
void table_job_failed(struct table *table, const struct job *job);
/* Where a table stands whose job has ended: go on with what waits. */
void table_next_step(struct table *table);
/* An unload goes on once nothing of the table is held. */
void table_unload_step(struct table *table);

/* table_reload.c */
/* A reload goes on once what has to go first is gone. */
void table_reload_step(struct table *table);
/* One that waits gives up: canceled, or too late. */
void table_reload_undo(struct table *table, enum engram_status status);
void table_reload_tick(struct table *table);

/* table_watch.c */
/* Watch the checkpoint that `spec` names, if it says so, and no other. */
void table_watch_follow(struct table *table);
void table_watch_end(struct table *table);
/* What a job has found in the checkpoint has been tried. */
void table_watch_tried(struct table *table, const struct load *load);
/* Reload if that is due and nothing stands against it. */
void table_watch_step(struct table *table);
void table_watch_tick(struct table *table);

/* table_generations.c */
/* From here on `gen` is lent, and what was before is superseded. */
void table_publish(struct table *table, struct generation *gen);
/* The same if those who hold the current one can take it. */
enum engram_status table_publish_fit(struct table *table,
				     struct generation *gen,
				     struct engram_error *err);
/* Say in `err`, which says what differs, who can not take it. */
void table_refused(const struct table *table, struct engram_error *err);
/* It is lent no more, and freed once nobody holds it; `unwanted` ones are not
 * kept for a rollback. */
void table_supersede(struct table *table, struct generation *gen,
		     bool unwanted);
/* What is kept for a rollback is not wanted any more. */
void table_let_old_go(struct table *table);
/* Free what is due, report what is overdue. */
void table_generations_tick(struct table *table);

#endif
