/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tables and their life cycle.  Loop thread only.
 *
 *   absent -> loading -> verifying -> ready -> draining -> absent
 *                   \-> failed
 *
 * A table has a current generation, which is lent, and at most one load that
 * builds the next.  Its state is what the control page shows.
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
	struct load *building;
	struct generation *freeing;
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
	struct engram_control_table *slot;
};

TAILQ_HEAD(table_list, table);

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
	void (*changed)(void *ctx, struct table *table);
	void *ctx;
};

enum engram_status tables_init(struct tables *tables, struct jobs *jobs,
			       struct engram_control_page *page,
			       const struct config *config,
			       void (*changed)(void *ctx, struct table *table),
			       void *ctx, struct engram_error *err);
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
/* Ask a running job to end.  An unload that waits for leases ends at once,
 * and its table is ready again; one that frees memory goes on. */
void tables_cancel(struct tables *tables, struct job *job);

/* Leases come and go. */
void table_lease(struct table *table, int delta, bool writable);

/* Free everything; tables_stopped once that is done.  Leases have to be
 * dropped first. */
void tables_stop(struct tables *tables);
bool tables_stopped(const struct tables *tables);

/* Show a load's phase and bytes in the control page; once a second. */
void tables_tick(struct tables *tables);

/* Between tables.c and table_jobs.c. */
void table_set_state(struct table *table, enum engram_table_state state);
/* A load that the configuration asks for; a failure is logged. */
void table_load_configured(struct table *table);

#endif
