/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of a generation on several nodes of memory: read back, and made. */
#include <inttypes.h>
#include <stdatomic.h>
#include <string.h>

#include "failpoint.h"
#include "load.h"
#include "log.h"
#include "numa.h"

/* A load has shown them before.  What it found damaged in a generation to be
 * adopted counts no more. */
static void show_layers(const struct generation_layer *layers, uint32_t n,
			uint32_t copies, struct loader_progress *progress)
{
	uint32_t i;

	atomic_store(&progress->copies, copies);
	atomic_store(&progress->bytes_verified, 0);
	for (i = 0; i < n; i++) {
		const struct engram_segment_header *h = layers[i].header;
		struct loader_layer_progress *layer = &progress->layers[i];

		atomic_store(&layer->layer_id, h->layer_id);
		atomic_store(&layer->bytes_total,
			     h->rows * engram_segment_record_bytes(h));
		atomic_store(&layer->bytes_verified, 0);
		atomic_store(&layer->verifying.begin_ns, 0);
		atomic_store(&layer->verifying.end_ns, 0);
	}
	atomic_store(&progress->num_layers, n);
}

/* Which layer it was, and of which copy. */
static void name_layer(const struct generation_layer *layer,
		       struct engram_error *err)
{
	if (layer->replica)
		engram_error_context(err, "layer %d on node %" PRIu32,
				     (int)layer->layer_id, layer->replica - 1);
	else
		engram_error_context(err, "layer %d", (int)layer->layer_id);
}

enum engram_status load_verify(const struct generation *gen, uint32_t copies,
			       uint32_t threads, struct job *job,
			       struct engram_error *err)
{
	struct engram_segment_map map;
	enum engram_status status;
	uint32_t i, there = 0;

	for (i = 0; i < copies; i++)
		there += generation_copy(gen, i)->writer != NULL;
	show_layers(generation_whole(gen), gen->num_layers, there,
		    &job->progress);
	job_set_phase(job, JOB_CHECKING);
	for (i = 0; i < copies * gen->num_layers; i++) {
		const struct generation_layer *layer = &gen->layers[i];

		if (!layer->writer)
			continue;
		status = load_canceled(job, err);
		if (status)
			return status;
		generation_layer_map(layer, &map);
		status = loader_verify(
			&map, threads, &job->progress,
			&job->progress.layers[i % gen->num_layers], err);
		if (status) {
			name_layer(layer, err);
			return status;
		}
	}
	return ENGRAM_OK;
}

enum engram_status load_create(const struct load *load,
			       const struct engram_segment_spec *spec,
			       struct generation *gen,
			       struct generation_layer *layer,
			       struct engram_error *err)
{
	const struct engram_backing backing =
		numa_backing_of(&load->backing, layer->replica);
	struct engram_segment_spec of = *spec;
	enum engram_status status;

	of.generation = gen->number;
	of.replica = layer->replica;
	layer->layer_id = spec->head.layer_id;
	status = engram_segment_create(&backing, &of, &layer->writer, err);
	if (status)
		return status;
	generation_count_layer(gen, layer);
	return ENGRAM_OK;
}

static enum engram_status copy_layer(const struct load *load,
				     const struct generation_layer *from,
				     const struct generation_layer *to,
				     struct loader_layer_progress *progress,
				     struct job *job, struct engram_error *err)
{
	struct loader_options options = load->options;
	struct engram_segment_map source, target;
	enum engram_status status;
	cpu_set_t near;

	options.cores = numa_cores("", UINT64_C(1) << (to->replica - 1), &near)
				? &near
				: NULL;
	generation_layer_map(from, &source);
	generation_layer_map(to, &target);
	FAILPOINT(copy_begin);
	status = loader_copy(&source, &target, to->writer, &options,
			     &job->progress, progress, err);
	if (!status)
		status = FAILPOINT_STATUS(copy_done, err);
	if (status)
		name_layer(to, err);
	return status;
}

enum engram_status load_replicate(const struct load *load,
				  struct generation *gen, uint64_t copies,
				  struct job *job, struct engram_error *err)
{
	const uint32_t source = (uint32_t)__builtin_ctzll(~copies);
	const struct generation_layer *from = generation_copy(gen, source);
	enum engram_status status = ENGRAM_OK;
	uint32_t copy, i;

	show_layers(from, gen->num_layers,
		    (uint32_t)__builtin_popcountll(copies), &job->progress);
	job_set_phase(job, JOB_COPYING);
	for (copy = 0; copy < gen->num_copies; copy++) {
		if (!(copies >> copy & 1))
			continue;
		for (i = 0; i < gen->num_layers && !status; i++) {
			status = load_canceled(job, err);
			if (!status)
				status = copy_layer(
					load, &from[i],
					&generation_copy(gen, copy)[i],
					&job->progress.layers[i], job, err);
		}
	}
	return status;
}

/* Those of a generation that is taken over that were not there. */
static uint64_t missing(const struct generation *gen, uint64_t *nodes)
{
	uint64_t copies = 0;
	uint32_t copy;

	*nodes = 0;
	for (copy = 0; copy < gen->num_copies; copy++) {
		const struct generation_layer *layers =
			generation_copy(gen, copy);

		if (layers->writer)
			continue;
		copies |= UINT64_C(1) << copy;
		*nodes |= UINT64_C(1) << (layers->replica - 1);
	}
	return copies;
}

static enum engram_status make_missing(
	const struct load *load, const struct engram_segment_spec *const *specs,
	struct generation *gen, uint64_t copies, struct job *job,
	struct engram_error *err)
{
	enum engram_status status = ENGRAM_OK;
	struct generation_layer *layers;
	uint32_t copy, i;

	for (copy = 0; copy < gen->num_copies; copy++) {
		layers = generation_copy(gen, copy);
		for (i = 0;
		     copies >> copy & 1 && i < gen->num_layers && !status; i++)
			status = load_create(load, specs[i], gen, &layers[i],
					     err);
	}
	if (!status)
		status = load_replicate(load, gen, copies, job, err);
	for (copy = 0; copy < gen->num_copies; copy++) {
		layers = generation_copy(gen, copy);
		for (i = 0;
		     copies >> copy & 1 && i < gen->num_layers && !status; i++)
			status = engram_segment_publish(layers[i].writer, err);
	}
	if (!status)
		status = generation_identify(gen, err);
	return status ? status : FAILPOINT_STATUS(copy_mended, err);
}

enum engram_status load_mend(const struct load *load,
			     const struct engram_segment_spec *const *specs,
			     struct generation *gen, struct job *job,
			     struct engram_error *err)
{
	const struct generation_layer *whole = generation_whole(gen);
	const uint64_t page = engram_backing_page(&load->backing);
	struct engram_backing backing = load->backing;
	struct memory_promise promise;
	enum engram_status status;
	struct memory_need need = {0};
	uint64_t nodes, copies = missing(gen, &nodes);
	char text[256];
	uint32_t i;

	if (!copies)
		return ENGRAM_OK;
	log_info("copying to nodes where a copy is missing",
		 LOG_S("table", load->spec->config.name),
		 LOG_U("generation", gen->number),
		 LOG_S("nodes", numa_text(nodes, text, sizeof(text))));
	for (i = 0; i < gen->num_layers; i++)
		need.bytes +=
			(whole[i].header->total_bytes + page - 1) / page * page;
	need.bytes *= (uint64_t)__builtin_popcountll(copies);
	need.files = gen->num_layers * (uint64_t)__builtin_popcountll(copies);
	backing.nodes = nodes;
	if (load->lock == MEMORY_LOCK_REQUIRE) {
		status = memory_lockable(gen->bytes + need.bytes, err);
		if (status)
			return status;
	}
	status = memory_admit(load->ledger, &backing, &need, &job->progress,
			      &promise, err);
	if (status)
		return status;
	status = make_missing(load, specs, gen, copies, job, err);
	memory_release(load->ledger, &promise);
	return status;
}
