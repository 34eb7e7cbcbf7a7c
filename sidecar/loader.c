/* SPDX-License-Identifier: Apache-2.0 */
/* One load: engine, threads, first error, report. */
#include "loader.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "loader_run.h"
#include "loader_threads.h"

#define DEPTH_MAX 1024
#define BLOCK_MAX (64u << 20)
/* preadv has one read in flight a thread. */
#define PREADV_FACTOR 4
/* Of records: below that, trying settings would be most of the load. */
#define TUNE_BYTES (UINT64_C(8) << 30)
/* Chunks of a drive that memory is had for before they are read. */
#define AHEAD_BYTES (UINT64_C(2) << 30)

const char *loader_engine_name(enum loader_engine engine)
{
	switch (engine) {
	case LOADER_AUTO:
		return "auto";
	case LOADER_IO_URING:
		return "io_uring";
	case LOADER_PREADV:
		return "preadv";
	}
	return "unknown";
}

static enum engram_status choose_engine(struct loader_shared *shared,
					const struct loader_options *options,
					struct engram_error *err)
{
	enum engram_status status;
	int r;

	shared->wish = options->engine;
	shared->engine = LOADER_PREADV;
	if (options->engine == LOADER_PREADV)
		return ENGRAM_OK;
	r = reader_uring_probe();
	if (!r) {
		shared->engine = LOADER_IO_URING;
		return ENGRAM_OK;
	}
	if (options->engine == LOADER_AUTO) {
		shared->fell_back = true;
		shared->fall_back_errno = -r;
		return ENGRAM_OK;
	}
	status = engram_error_sys(err, -r, "io_uring cannot be used");
	if (status == ENGRAM_EPERM || r == -ENOSYS)
		status = ENGRAM_EUNSUPPORTED;
	if (err)
		err->status = status;
	engram_error_fix(err,
			 "set loader.engine to \"auto\", or allow "
			 "io_uring (sysctl kernel.io_uring_disabled=0, the "
			 "container's seccomp profile)");
	return status;
}

ENGRAM_PRINTF(2, 3)
static void add_reason(struct loader_report *report, const char *fmt, ...)
{
	char *out = report->engine_reason;
	const size_t size = sizeof(report->engine_reason);
	va_list args;
	size_t len;

	if (*out)
		strncat(out, "; ", size - strlen(out) - 1);
	len = strlen(out);
	va_start(args, fmt);
	vsnprintf(out + len, size - len, fmt, args);
	va_end(args);
}

static void fill_report(const struct loader_shared *shared,
			const struct loader_options *options, uint32_t wanted,
			uint32_t threads, struct loader_report *report)
{
	const struct loader_setting setting =
		loader_setting_unpack(atomic_load(&shared->setting));
	const struct loader_plan *plan = &shared->targets[0].plan;
	char text[64] = "";

	memset(report, 0, sizeof(*report));
	report->engine = shared->fell_back ? LOADER_PREADV : shared->engine;
	report->direct = sources_direct(&shared->sources);
	report->registered_buffers =
		report->engine == LOADER_IO_URING && !shared->unregistered;
	report->threads = threads;
	report->queue_depth = setting.depth;
	report->block_bytes =
		(uint32_t)(loader_plan_block_rows(plan, setting.block_bytes) *
			   plan->code_bytes);
	if (shared->fell_back)
		add_reason(report, "io_uring: %s",
			   strerror_r(shared->fall_back_errno, text,
				      sizeof(text)));
	else if (report->engine == LOADER_IO_URING && shared->unregistered)
		add_reason(report, "buffers not registered");
	if (!report->direct && options->direct != LOADER_DIRECT_OFF)
		add_reason(report, "no direct reads");
	if (shared->priority_errno)
		add_reason(
			report, "no I/O priority: %s",
			strerror_r(shared->priority_errno, text, sizeof(text)));
	if (threads < wanted)
		add_reason(report, "fewer threads than asked for");
}

static enum engram_status outcome(struct loader_shared *shared,
				  const struct checkpoint *checkpoint,
				  const struct loader_layer *layers,
				  struct engram_error *err)
{
	enum engram_status status = ENGRAM_OK;
	uint32_t i;

	if (shared->status) {
		if (err)
			*err = shared->err;
		return shared->status;
	}
	if (atomic_load(&shared->progress->cancel)) {
		engram_error_set(err, ENGRAM_ECANCELED,
				 "the load was cancelled");
		engram_error_fix(err, "load the table again");
		return ENGRAM_ECANCELED;
	}
	for (i = 0; i < shared->num_targets && !status; i++) {
		status = checkpoint_unchanged(checkpoint, layers[i].layer, err);
		if (status)
			engram_error_context(err, "layer %" PRId32,
					     layers[i].layer->layer_id);
	}
	return status;
}

static uint32_t at_most(uint32_t value, uint32_t most)
{
	return value < most ? value : most;
}

/* Blocks and depths, and the buffers that the largest of them need. */
static void plan_settings(struct loader_shared *shared,
			  const struct loader_options *options,
			  struct loader_tune *tune)
{
	const struct loader_setting fixed = {
		at_most(options->block_bytes, BLOCK_MAX),
		at_most(options->queue_depth, DEPTH_MAX)};
	const struct loader_setting first =
		loader_tune_init(tune, fixed, shared->engine == LOADER_PREADV);
	uint64_t bytes = 0, room;
	uint32_t i, k;

	for (i = 0; i < shared->num_targets; i++)
		bytes += atomic_load(&shared->targets[i].progress->bytes_total);
	/* Nor does a capped load show what the drive could do. */
	if (bytes < TUNE_BYTES || shared->bytes_per_second)
		tune->count = 1;
	for (k = 0; k < tune->count; k++)
		for (i = 0; i < shared->num_targets; i++) {
			room = loader_worker_room(&shared->targets[i].plan,
						  tune->settings[k],
						  shared->align);
			if (room > shared->arena_bytes)
				shared->arena_bytes = room;
			if (tune->settings[k].depth > shared->most_depth)
				shared->most_depth = tune->settings[k].depth;
		}
	atomic_store(&shared->setting, loader_setting_pack(first));
}

/* How many threads read; at least one for each drive. */
static uint32_t num_readers(const struct loader_shared *shared,
			    uint32_t threads)
{
	const uint64_t chunks = loader_queue_count(&shared->queue);

	if (shared->engine == LOADER_PREADV)
		threads *= PREADV_FACTOR;
	if (threads < shared->queue.num_lanes)
		threads = shared->queue.num_lanes;
	threads = at_most(threads, LOADER_THREADS_MAX);
	return threads < chunks ? threads : (uint32_t)chunks;
}

static enum engram_status run(struct loader_shared *shared,
			      const struct loader_options *options,
			      struct loader_report *report,
			      struct engram_error *err)
{
	const uint32_t cores = loader_threads_wanted(options->threads);
	const uint32_t wanted = num_readers(shared, cores);
	const uint64_t start = clock_ns();
	uint32_t threads = wanted;
	struct loader_tune tune;
	enum engram_status status;
	bool tuned;

	plan_settings(shared, options, &tune);
	status = loader_run(shared, &threads, (cores + 1) / 2,
			    loader_tune_worth(&tune) ? &tune : NULL, &tuned,
			    err);
	if (status)
		return status;
	fill_report(shared, options, wanted, threads, report);
	report->tuned = tuned;
	report->seconds_read = clock_seconds_since(start);
	return ENGRAM_OK;
}

/* ---- what is to be filled ---- */

static enum engram_status add_target(struct loader_shared *shared,
				     const struct loader_layer *layer,
				     struct engram_error *err)
{
	struct loader_target *target = &shared->targets[shared->num_targets];
	enum engram_status status;

	target->layer_id = layer->layer->layer_id;
	target->header = layer->header;
	target->checksums = layer->checksums;
	target->known = layer->known;
	if (layer->writer) {
		target->header = engram_segment_writer_header(layer->writer);
		target->base = engram_segment_writer_base(layer->writer);
		target->checksums =
			engram_segment_writer_checksums(layer->writer);
	}
	target->progress = &shared->progress->layers[shared->num_targets];
	status = loader_plan_init(&target->plan, target->header, layer->layer,
				  err);
	if (!status && layer->writer)
		status = loader_memory_init(&target->memory, layer->writer,
					    &shared->progress->bytes_touched,
					    err);
	if (status)
		engram_error_context(err, "layer %" PRId32, target->layer_id);
	else
		shared->num_targets++;
	return status;
}

/* Once more for all: workers read ahead into what others have dropped. */
static void drop_all(const struct loader_shared *shared)
{
	const struct loader_plan *plan;
	uint32_t i;

	for (i = 0; i < shared->num_targets; i++) {
		plan = &shared->targets[i].plan;
		loader_plan_drop(plan, &shared->sources, 0, plan->rows);
	}
}

static void free_targets(struct loader_shared *shared)
{
	uint32_t i;

	for (i = 0; i < shared->num_targets; i++)
		loader_memory_free(&shared->targets[i].memory);
	free(shared->targets);
}

static enum engram_status make_targets(struct loader_shared *shared,
				       const struct loader_layer *layers,
				       uint32_t num_layers,
				       struct engram_error *err)
{
	enum engram_status status = ENGRAM_OK;
	uint32_t i;

	shared->targets = calloc(num_layers, sizeof(*shared->targets));
	if (!shared->targets) {
		engram_error_set(err, ENGRAM_ENOMEM,
				 "no memory to plan a load");
		engram_error_fix(err, "free some memory");
		return ENGRAM_ENOMEM;
	}
	for (i = 0; i < num_layers && !status; i++)
		status = add_target(shared, &layers[i], err);
	if (status)
		free_targets(shared);
	return status;
}

static enum engram_status open_sources(struct loader_shared *shared,
				       const struct checkpoint *checkpoint,
				       const struct loader_layer *layers,
				       enum loader_direct direct,
				       struct engram_error *err)
{
	const struct checkpoint_layer *of[ENGRAM_LAYERS_MAX];
	const struct loader_plan *plans[ENGRAM_LAYERS_MAX];
	enum engram_status status;
	bool scales = false;
	uint32_t i;

	for (i = 0; i < shared->num_targets; i++) {
		of[i] = layers[i].layer;
		plans[i] = &shared->targets[i].plan;
		scales |= plans[i]->scale_bytes != 0;
	}
	status = sources_open(&shared->sources, checkpoint, of,
			      shared->num_targets, scales, direct, err);
	if (status)
		return status;
	shared->align = sources_align(&shared->sources);
	status = loader_queue_init(&shared->queue, plans, shared->num_targets,
				   &shared->sources,
				   AHEAD_BYTES / ENGRAM_CHUNK_BYTES, err);
	if (status)
		sources_close(&shared->sources);
	return status;
}

static enum engram_status fill(struct loader_shared *shared,
			       const struct checkpoint *checkpoint,
			       const struct loader_layer *layers,
			       const struct loader_options *options,
			       struct loader_report *report,
			       struct engram_error *err)
{
	enum engram_status status = choose_engine(shared, options, err);

	if (!status)
		status = open_sources(shared, checkpoint, layers,
				      options->direct, err);
	if (status)
		return status;
	pthread_mutex_init(&shared->lock, NULL);
	pthread_cond_init(&shared->changed, NULL);
	status = run(shared, options, report, err);
	if (!status)
		status = outcome(shared, checkpoint, layers, err);
	drop_all(shared);
	pthread_cond_destroy(&shared->changed);
	pthread_mutex_destroy(&shared->lock);
	loader_queue_free(&shared->queue);
	sources_close(&shared->sources);
	return status;
}

enum engram_status loader_fill(const struct checkpoint *checkpoint,
			       const struct loader_layer *layers,
			       uint32_t num_layers,
			       const struct loader_options *options,
			       struct loader_progress *progress,
			       struct loader_report *report,
			       struct engram_error *err)
{
	struct loader_shared shared = {.progress = progress,
				       .bytes_per_second =
					       options->bytes_per_second,
				       .priority = options->priority,
				       .cores = options->cores};
	enum engram_status status =
		make_targets(&shared, layers, num_layers, err);

	if (status)
		return status;
	status = fill(&shared, checkpoint, layers, options, report, err);
	free_targets(&shared);
	return status;
}
