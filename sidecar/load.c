/* SPDX-License-Identifier: Apache-2.0 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "adopt.h"
#include "checkpoint.h"
#include "clock.h"
#include "failpoint.h"
#include "huge_pages.h"
#include "load.h"
#include "log.h"
#include "manifest.h"
#include "numa.h"
#include "placement.h"

/* A layer before it has memory. */
struct plan {
	struct engram_segment_spec spec;
	struct engram_segment_source *sources;
};

enum engram_status load_canceled(struct job *job, struct engram_error *err)
{
	if (!atomic_load(&job->progress.cancel))
		return ENGRAM_OK;
	return engram_error_set(err, ENGRAM_ECANCELED, "job %llu was canceled",
				(unsigned long long)job->id);
}

/* Sizes of everything, before anything is allocated. */
static enum engram_status plan_layers(const struct load *load,
				      const struct checkpoint *checkpoint,
				      struct plan *plans,
				      struct memory_need *need, struct job *job,
				      struct engram_error *err)
{
	const uint64_t page = engram_backing_page(&load->backing);
	struct loader_progress *progress = &job->progress;
	uint64_t records = 0, bytes;
	enum engram_status status;
	uint32_t i;

	*need = (struct memory_need){0};
	for (i = 0; i < checkpoint->num_layers; i++) {
		struct plan *plan = &plans[i];

		status = checkpoint_spec(checkpoint, &checkpoint->layers[i],
					 load->spec->config.layout, &plan->spec,
					 &plan->sources, err);
		if (status)
			return status;
		plan->spec.instance = load->instance;
		plan->spec.table = load->spec->config.name;
		plan->spec.generation = load->number;
		status = engram_segment_plan(&plan->spec, &bytes, err);
		if (status)
			return status;
		need->bytes += (bytes + page - 1) / page * page;
		bytes = checkpoint->layers[i].rows *
			engram_segment_record_bytes(&plan->spec.head);
		atomic_store(&progress->layers[i].layer_id,
			     checkpoint->layers[i].layer_id);
		atomic_store(&progress->layers[i].bytes_total, bytes);
		records += bytes;
	}
	need->bytes *= load->gen->num_copies;
	need->files = load->gen->num_segments;
	atomic_store(&progress->bytes_total, records);
	atomic_store(&progress->num_layers, checkpoint->num_layers);
	return ENGRAM_OK;
}

/* Is there a layer for a layer, and can each be overwritten? */
static enum engram_status check_overwrite(const struct load *load,
					  const struct generation *over,
					  const struct plan *plans, uint32_t n,
					  struct engram_error *err)
{
	enum engram_status status = ENGRAM_OK;
	uint32_t i;

	if (load->gen->num_copies != over->num_copies ||
	    load->gen->layers[0].replica != over->layers[0].replica)
		return engram_error_set(err, ENGRAM_EGEOMETRY,
					"the nodes of memory are not those "
					"that it has copies on");
	if (n != over->num_layers)
		return engram_error_set(err, ENGRAM_EGEOMETRY,
					"there are %u layers where there were "
					"%u",
					n, over->num_layers);
	for (i = 0; i < n && !status; i++)
		status = engram_segment_check_overwrite(&load->backing,
							over->layers[i].header,
							&plans[i].spec, err);
	return status;
}

static enum engram_status create_layers(const struct load *load,
					const struct plan *plans,
					struct generation *gen, struct job *job,
					struct engram_error *err)
{
	enum engram_status status = ENGRAM_OK;
	uint32_t i;

	for (i = 0; i < gen->num_segments && !status; i++) {
		status = load_canceled(job, err);
		if (!status)
			status = load_create(load,
					     &plans[i % gen->num_layers].spec,
					     gen, &gen->layers[i], err);
	}
	return status;
}

/* The memory of a generation that nobody reads, in place of new memory. */
static enum engram_status take_layers(const struct load *load,
				      const struct plan *plans,
				      struct generation *gen,
				      struct engram_error *err)
{
	struct generation *over = load->over;
	struct engram_segment_spec spec;
	enum engram_status status;
	uint32_t i;

	status = check_overwrite(load, over, plans, gen->num_layers, err);
	for (i = 0; i < gen->num_segments && !status; i++) {
		struct generation_layer *from = &over->layers[i];

		status = engram_segment_unprotect(from->writer, err);
		from->header = engram_segment_writer_header(from->writer);
	}
	for (i = 0; i < gen->num_segments && !status; i++) {
		struct generation_layer *from = &over->layers[i];
		struct generation_layer *to = &gen->layers[i];

		spec = plans[i % gen->num_layers].spec;
		spec.replica = to->replica;
		status = engram_segment_overwrite(from->writer, &spec, err);
		if (status)
			break;
		to->layer_id = from->layer_id;
		to->writer = from->writer;
		to->header = from->header;
		gen->bytes += to->header->total_bytes;
		from->writer = NULL;
		from->header = NULL;
	}
	return status;
}

static enum engram_status fill_layers(const struct load *load,
				      const struct checkpoint *checkpoint,
				      const struct manifest *manifest,
				      struct generation *gen, struct job *job,
				      struct engram_error *err)
{
	struct loader_options options = load->options;
	const struct engram_backing backing =
		numa_backing_of(&load->backing, gen->layers[0].replica);
	struct loader_layer layers[ENGRAM_LAYERS_MAX];
	enum engram_status status = ENGRAM_OK;
	cpu_set_t near;
	uint32_t i;

	if (backing.numa != ENGRAM_NUMA_LOCAL &&
	    numa_cores("", backing.nodes, &near))
		options.cores = &near;
	for (i = 0; i < gen->num_layers && !status; i++) {
		layers[i] =
			(struct loader_layer){.layer = &checkpoint->layers[i],
					      .writer = gen->layers[i].writer};
		if (manifest)
			status = manifest_find(manifest, gen->layers[i].header,
					       &layers[i].known, err);
	}
	if (status)
		return status;
	status = loader_fill(checkpoint, layers, gen->num_layers, &options,
			     &job->progress, &gen->report, err);
	gen->report.manifest = manifest != NULL;
	return status ? status : FAILPOINT_STATUS(load_filled, err);
}

static enum engram_status publish_layers(struct generation *gen,
					 struct engram_error *err)
{
	enum engram_status status;
	uint32_t i;

	for (i = 0; i < gen->num_segments; i++) {
		status = engram_segment_publish(gen->layers[i].writer, err);
		if (status)
			return status;
	}
	status = generation_identify(gen, err);
	if (!status)
		status = FAILPOINT_STATUS(publish_identified, err);
	return status;
}

/* What kind of memory it has got, and whether that is what was demanded. */
static enum engram_status read_back(struct generation *gen,
				    const struct engram_backing *backing,
				    struct engram_error *err)
{
	enum engram_status status;

	huge_pages_measure(gen, backing);
	placement_measure(gen, backing);
	status = huge_pages_check(gen, backing, err);
	return status ? status : placement_check(gen, backing, err);
}

static uint64_t copies_but_first(const struct generation *gen)
{
	return (UINT64_MAX >> (ENGRAM_NODES - gen->num_copies)) - 1;
}

static enum engram_status build(struct load *load,
				const struct checkpoint *checkpoint,
				const struct plan *plans,
				const struct manifest *manifest,
				struct job *job, struct engram_error *err)
{
	struct generation *gen = load->gen;
	bool lock_later = false;
	enum engram_status status;
	uint64_t start;

	status = load->over ? take_layers(load, plans, gen, err)
			    : create_layers(load, plans, gen, job, err);
	if (!status)
		status = load_lock_ahead(gen, load->lock, &lock_later, err);
	if (!status)
		status = fill_layers(load, checkpoint, manifest, gen, job, err);
	if (status)
		return status;
	if (load->spec->config.verify) {
		start = clock_ns();
		status = load_verify(gen, 1, load->options.threads, job, err);
		if (status)
			return status;
		gen->report.seconds_verify = clock_seconds_since(start);
	}
	FAILPOINT(load_checked);
	if (gen->num_copies > 1)
		status = load_replicate(load, gen, copies_but_first(gen), job,
					err);
	if (!status && lock_later)
		status = load_lock(gen, load->lock, job, err);
	if (!status)
		status = FAILPOINT_STATUS(load_locked, err);
	if (!status)
		status = read_back(gen, &load->backing, err);
	if (!status)
		status = load_canceled(job, err);
	if (!status)
		status = publish_layers(gen, err);
	/* Nobody has seen it yet. */
	return status ? status : load_canceled(job, err);
}

/* Refuse what can not work before a byte is read, then build it. */
static enum engram_status admit_and_build(struct load *load,
					  const struct checkpoint *checkpoint,
					  const struct plan *plans,
					  const struct memory_need *need,
					  struct job *job,
					  struct engram_error *err)
{
	struct manifest manifest = {0};
	struct memory_promise promise;
	enum engram_status status;
	bool found;

	if (load->lock == MEMORY_LOCK_REQUIRE) {
		status = memory_lockable(need->bytes, err);
		if (status)
			return status;
	}
	status = load_manifest_read(&load->spec->config, checkpoint, &manifest,
				    &found, err);
	if (status)
		return status;
	/* What an attempt to take something over has touched is gone. */
	atomic_store(&job->progress.bytes_touched, 0);
	status = memory_admit(load->ledger, &load->backing, need,
			      &job->progress, &promise, err);
	if (status)
		goto out;
	FAILPOINT(load_admitted);
	status = build(load, checkpoint, plans, found ? &manifest : NULL, job,
		       err);
	memory_release(load->ledger, &promise);
out:
	manifest_free(&manifest);
	return status;
}

static enum engram_status find_left(
	const struct load *load, const struct engram_segment_spec *const *specs,
	uint32_t n, struct generation **out, struct engram_error *refused,
	struct engram_error *err)
{
	*out = NULL;
	engram_error_clear(refused);
	if (load->adopt == ADOPT_OFF)
		return ENGRAM_OK;
	return adopt_generation(load, specs, n, out, refused, err);
}

/* For people who wonder why it is loaded. */
static void tell_refused(const struct load *load, struct job *job,
			 const struct engram_error *refused)
{
	snprintf(load->gen->not_adopted, sizeof(load->gen->not_adopted),
		 "%.255s", refused->message);
	memcpy(job->not_adopted, load->gen->not_adopted,
	       sizeof(job->not_adopted));
	atomic_store(&job->refused, true);
}

/*
 * Take over what a former engramd has left.  Damaged records are no failure:
 * *adopted stays false, and the table is loaded.  After any other error it is
 * still there for another try.
 */
static enum engram_status adopt(struct load *load, const struct plan *plans,
				uint32_t n, struct job *job, bool *adopted,
				struct engram_error *err)
{
	const struct engram_segment_spec *specs[ENGRAM_LAYERS_MAX];
	struct generation *gen;
	struct engram_error refused;
	enum engram_status status;
	uint32_t i;

	for (i = 0; i < n; i++)
		specs[i] = &plans[i].spec;
	status = find_left(load, specs, n, &gen, &refused, err);
	*adopted = false;
	if (!status && !gen && refused.status)
		tell_refused(load, job, &refused);
	if (status || !gen)
		return status;
	status = load_canceled(job, err);
	if (!status && load->adopt == ADOPT_VERIFY)
		status = load_verify(gen, gen->num_copies,
				     load->options.threads, job, err);
	if (!status)
		status = load_mend(load, specs, gen, job, err);
	if (status == ENGRAM_ECHECKSUM) {
		log_failure(LOG_WARN, "not adopted", err);
		tell_refused(load, job, err);
		engram_error_clear(err);
		generation_free(gen);
		job_set_phase(job, JOB_READING);
		return ENGRAM_OK;
	}
	/* Otherwise once it is lent: locking reads every page's entry. */
	if (!status &&
	    (load->adopt == ADOPT_VERIFY || load->lock == MEMORY_LOCK_REQUIRE))
		status = load_lock(gen, load->lock, job, err);
	if (status) {
		generation_leave(gen);
		return status;
	}
	if (read_back(gen, &load->backing, err)) {
		log_failure(LOG_WARN, "adopted as it is", err);
		engram_error_clear(err);
	}
	generation_free(load->gen);
	load->gen = gen;
	*adopted = true;
	return ENGRAM_OK;
}

/* Is there anything to do at all, and is it what clients can take? */
static enum engram_status compare_with_current(struct load *load,
					       const struct plan *plans,
					       uint32_t n,
					       struct engram_error *err)
{
	const struct generation *was = load->current;
	enum engram_status status = ENGRAM_OK;
	struct engram_error differs;
	uint32_t i;

	load->unchanged = !load->force && n == was->num_layers;
	for (i = 0; i < n && load->unchanged; i++)
		load->unchanged = !engram_segment_compare(
			was->layers[i].header, &plans[i].spec, &differs);
	if (load->unchanged || !load->fit)
		return ENGRAM_OK;
	if (n < was->num_layers)
		return engram_error_set(err, ENGRAM_EGEOMETRY,
					"there are %u layers where there were "
					"%u",
					n, was->num_layers);
	for (i = 0; i < n && !status; i++)
		status = generation_fits(was, i, &plans[i].spec.head,
					 plans[i].spec.token_map_len, err);
	if (!status && load->in_place)
		status = check_overwrite(load, was, plans, n, err);
	return status;
}

static enum engram_status adopt_or_build(struct load *load,
					 const struct checkpoint *checkpoint,
					 const struct plan *plans,
					 const struct memory_need *need,
					 struct job *job,
					 struct engram_error *err)
{
	bool adopted;
	enum engram_status status =
		adopt(load, plans, checkpoint->num_layers, job, &adopted, err);

	if (status || adopted)
		return status;
	if (!load->adopt_only)
		return admit_and_build(load, checkpoint, plans, need, job, err);
	return engram_error_set(err, ENGRAM_ENOTFOUND,
				"nothing was left that could be adopted");
}

static enum engram_status resolve_nodes(struct load *load,
					struct engram_error *err)
{
	const bool replicate = load->backing.numa == ENGRAM_NUMA_REPLICATE;
	enum engram_status status = numa_resolve("", &load->backing, err);

	if (!status && replicate && load->backing.numa != ENGRAM_NUMA_REPLICATE)
		log_info("memory.numa is \"replicate\", but there is one node: "
			 "one copy is made",
			 LOG_S("table", load->spec->config.name));
	return status;
}

enum engram_status load_build(struct load *load, struct job *job,
			      struct engram_error *err)
{
	const struct checkpoint_options options =
		table_checkpoint_options(&load->spec->config);
	struct checkpoint *checkpoint = NULL;
	struct plan *plans = NULL;
	enum engram_status status;
	struct memory_need need;
	uint32_t i, n = 0;

	watch_look(options.dir, table_needs_config(&load->spec->config),
		   &load->found);
	status = resolve_nodes(load, err);
	if (!status)
		status = checkpoint_open(&options, &checkpoint, err);
	if (status)
		goto out;
	FAILPOINT(load_opened);
	n = checkpoint->num_layers;
	plans = calloc(n, sizeof(*plans));
	load->gen = generation_new(load->number, n, &load->backing);
	if (!plans || !load->gen) {
		status = engram_error_set(err, ENGRAM_ENOMEM, "no memory");
		goto out;
	}
	status = plan_layers(load, checkpoint, plans, &need, job, err);
	if (!status)
		status = FAILPOINT_STATUS(load_planned, err);
	if (load->over) /* it has its memory */
		need = (struct memory_need){0};
	if (!status && load->current)
		status = compare_with_current(load, plans, n, err);
	if (!status && !load->unchanged && !load->look_only)
		status = adopt_or_build(load, checkpoint, plans, &need, job,
					err);
out:
	for (i = 0; plans && i < n; i++)
		free(plans[i].sources);
	free(plans);
	checkpoint_free(checkpoint);
	if (status)
		engram_error_context(err, "table \"%s\"",
				     load->spec->config.name);
	if (status || load->unchanged || load->look_only) {
		/* Before the job ends, so that its memory is free then. */
		generation_free(load->gen);
		load->gen = NULL;
	}
	return status;
}
