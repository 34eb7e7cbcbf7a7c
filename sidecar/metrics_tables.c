/* SPDX-License-Identifier: Apache-2.0 */
/* What there is to tell of tables, each with its name. */
#include <stdio.h>

#include "figures.h"
#include "metrics.h"
#include "views.h"

struct table_family {
	const char *name, *type, *help;
	void (*expose)(struct exposition *e, const struct table *table);
};

static void count(struct exposition *e, const struct table *table,
		  uint64_t value)
{
	expose_count(e, LABELS("table", table->name), value);
}

/* One of the states is 1. */
static void expose_state(struct exposition *e, const struct table *table)
{
	for (int i = ENGRAM_TABLE_ABSENT; i <= ENGRAM_TABLE_FAILED; i++) {
		const enum engram_table_state state =
			(enum engram_table_state)i;

		expose_count(e,
			     LABELS("table", table->name, "state",
				    engram_table_state_name(state)),
			     table->state == state);
	}
}

static void expose_generation(struct exposition *e, const struct table *table)
{
	count(e, table, table->current ? table->current->number : 0);
}

static void expose_generations(struct exposition *e, const struct table *table)
{
	const struct generation *gen;
	uint64_t n = 0;

	n += table->current != NULL;
	n += table->staged != NULL;
	TAILQ_FOREACH(gen, &table->old, entry)
	n++;
	count(e, table, n);
}

static void expose_bytes(struct exposition *e, const struct table *table)
{
	count(e, table, table->current ? table->current->bytes : 0);
}

static void expose_held(struct exposition *e, const struct table *table)
{
	count(e, table, view_table_bytes(table));
}

static void expose_locked(struct exposition *e, const struct table *table)
{
	const struct generation *gen = table->current;

	count(e, table, gen && gen->locked ? gen->bytes : 0);
}

static void expose_adopted(struct exposition *e, const struct table *table)
{
	count(e, table, table->current && table->current->adopted);
}

static void expose_leases(struct exposition *e, const struct table *table)
{
	count(e, table, table->leases);
}

static void expose_writable(struct exposition *e, const struct table *table)
{
	count(e, table, table->writable_leases);
}

static void expose_loads(struct exposition *e, const struct table *table)
{
	count(e, table, engram_control_load64(&table->slot->loads));
}

static void expose_failures(struct exposition *e, const struct table *table)
{
	count(e, table, engram_control_load64(&table->slot->load_failures));
}

/* Of what is lent, and was not adopted. */
static void expose_seconds(struct exposition *e, const struct table *table)
{
	const struct generation *gen = table->current;

	if (!gen || gen->adopted)
		return;
	expose_real(e, LABELS("table", table->name, "phase", "reading"),
		    gen->report.seconds_read);
	expose_real(e, LABELS("table", table->name, "phase", "verifying"),
		    gen->report.seconds_verify);
}

/* ---- the job that runs ---- */

static void job_bytes(struct exposition *e, const struct table *table,
		      bool total)
{
	const struct job *job = table->job;
	struct figures f;

	if (!job)
		return;
	f = figures_of_job(job);
	expose_count(e,
		     LABELS("table", table->name, "kind",
			    job_kind_name(job->kind), "phase",
			    job_phase_name(
				    (enum job_phase)atomic_load(&job->phase))),
		     total ? f.total : f.done);
}

static void expose_job_total(struct exposition *e, const struct table *table)
{
	job_bytes(e, table, true);
}

static void expose_job_done(struct exposition *e, const struct table *table)
{
	job_bytes(e, table, false);
}

/* ---- layers ---- */

static void each_layer(struct exposition *e, const struct table *table,
		       bool (*value)(const struct generation_layer *layer,
				     uint64_t *out))
{
	const struct generation *gen = table->current;
	char id[16];
	uint64_t n;

	for (uint32_t i = 0; gen && i < gen->num_layers; i++) {
		if (!value(&gen->layers[i], &n))
			continue;
		snprintf(id, sizeof(id), "%d", (int)gen->layers[i].layer_id);
		expose_count(e, LABELS("table", table->name, "layer", id), n);
	}
}

static bool layer_rows(const struct generation_layer *layer, uint64_t *out)
{
	*out = layer->header->rows;
	return true;
}

static bool layer_bytes(const struct generation_layer *layer, uint64_t *out)
{
	*out = layer->header->total_bytes;
	return true;
}

static bool layer_huge(const struct generation_layer *layer, uint64_t *out)
{
	*out = atomic_load(&layer->huge_bytes);
	return *out != UINT64_MAX;
}

static void expose_layer_rows(struct exposition *e, const struct table *table)
{
	each_layer(e, table, layer_rows);
}

static void expose_layer_bytes(struct exposition *e, const struct table *table)
{
	each_layer(e, table, layer_bytes);
}

static void expose_layer_huge(struct exposition *e, const struct table *table)
{
	each_layer(e, table, layer_huge);
}

static const struct table_family families[] = {
	{"engram_table_state", "gauge", "1 for the state that a table is in.",
	 expose_state},
	{"engram_table_generation", "gauge",
	 "The generation that is lent; 0: none.", expose_generation},
	{"engram_table_generations", "gauge", "Generations that are in memory.",
	 expose_generations},
	{"engram_table_bytes", "gauge",
	 "Memory of the generation that is lent.", expose_bytes},
	{"engram_table_held_bytes", "gauge",
	 "Memory of all generations of the table.", expose_held},
	{"engram_table_locked_bytes", "gauge",
	 "What of the generation that is lent is pinned.", expose_locked},
	{"engram_table_adopted", "gauge",
	 "1 if what is lent was taken over from a former engramd.",
	 expose_adopted},
	{"engram_table_leases", "gauge", "Leases, of all generations.",
	 expose_leases},
	{"engram_table_writable_leases", "gauge",
	 "Leases whose holders could write.", expose_writable},
	{"engram_table_loads_total", "counter",
	 "Loads and reloads that brought a generation.", expose_loads},
	{"engram_table_load_failures_total", "counter",
	 "Loads and reloads that failed.", expose_failures},
	{"engram_table_load_seconds", "gauge",
	 "How long loading what is lent took; absent if it was adopted.",
	 expose_seconds},
	{"engram_table_job_bytes", "gauge",
	 "Bytes that the running job of a table has to do in this phase.",
	 expose_job_total},
	{"engram_table_job_done_bytes", "gauge",
	 "Bytes that it has done of those.", expose_job_done},
	{"engram_table_layer_rows", "gauge", "Rows of a layer.",
	 expose_layer_rows},
	{"engram_table_layer_bytes", "gauge", "Memory of a layer.",
	 expose_layer_bytes},
	{"engram_table_layer_huge_page_bytes", "gauge",
	 "Memory of a layer that is mapped by huge pages; absent while that is "
	 "not known.",
	 expose_layer_huge},
};

void metrics_tables(struct exposition *e, const struct server *server)
{
	const struct table *table;

	for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++) {
		expose_family(e, families[i].name, families[i].type,
			      families[i].help);
		TAILQ_FOREACH(table, &server->tables.list, entry)
		families[i].expose(e, table);
	}
}
