/* SPDX-License-Identifier: Apache-2.0 */
/* One load: engine, threads, first error, report. */
#include "loader.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "loader_threads.h"
#include "loader_worker.h"

#define DEPTH_DEFAULT 8
#define DEPTH_MAX     1024
#define BLOCK_DEFAULT (1u << 20)
#define BLOCK_MAX     (64u << 20)
/* preadv has one read in flight a thread. */
#define PREADV_FACTOR 4

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

static void fill_report(const struct loader_shared *shared,
			const struct loader_options *options, uint32_t wanted,
			uint32_t threads, struct loader_report *report)
{
	char text[64] = "", why[128] = "";

	memset(report, 0, sizeof(*report));
	report->engine = shared->fell_back ? LOADER_PREADV : shared->engine;
	report->direct = sources_direct(&shared->sources);
	report->registered_buffers =
		report->engine == LOADER_IO_URING && !shared->unregistered;
	report->threads = threads;
	report->queue_depth = shared->depth;
	report->block_bytes =
		(uint32_t)(shared->plan.block_rows * shared->plan.code_bytes);
	if (shared->fell_back)
		snprintf(why, sizeof(why), "io_uring: %s",
			 strerror_r(shared->fall_back_errno, text,
				    sizeof(text)));
	else if (report->engine == LOADER_IO_URING && shared->unregistered)
		snprintf(why, sizeof(why), "buffers not registered");
	snprintf(report->engine_reason, sizeof(report->engine_reason),
		 "%.60s%s%s%s", why,
		 !report->direct && options->direct != LOADER_DIRECT_OFF
			 ? (*why ? "; no direct reads" : "no direct reads")
			 : "",
		 threads < wanted ? "; fewer threads than asked for" : "", "");
}

static enum engram_status outcome(struct loader_shared *shared,
				  const struct checkpoint *checkpoint,
				  const struct checkpoint_layer *layer,
				  struct engram_error *err)
{
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
	return checkpoint_unchanged(checkpoint, layer, err);
}

static uint32_t or_default(uint32_t value, uint32_t otherwise, uint32_t most)
{
	value = value ? value : otherwise;
	return value < most ? value : most;
}

static enum engram_status run(struct loader_shared *shared,
			      const struct loader_options *options,
			      struct loader_report *report,
			      struct engram_error *err)
{
	uint32_t threads = loader_threads_wanted(options->threads);
	const uint64_t start = clock_ns();
	enum engram_status status;
	uint32_t wanted;

	shared->depth =
		or_default(options->queue_depth, DEPTH_DEFAULT, DEPTH_MAX);
	if (shared->engine == LOADER_PREADV) {
		threads = threads * PREADV_FACTOR < LOADER_THREADS_MAX
				  ? threads * PREADV_FACTOR
				  : LOADER_THREADS_MAX;
		shared->depth = 1;
	}
	wanted = threads < shared->plan.num_chunks
			 ? threads
			 : (uint32_t)shared->plan.num_chunks;
	threads = wanted;
	status = loader_threads_run(&threads, loader_worker, shared, err);
	if (status)
		return status;
	fill_report(shared, options, wanted, threads, report);
	report->seconds_read = clock_seconds_since(start);
	return ENGRAM_OK;
}

enum engram_status loader_fill(const struct checkpoint *checkpoint,
			       const struct checkpoint_layer *layer,
			       struct engram_segment_writer *writer,
			       const struct loader_options *options,
			       struct loader_progress *progress,
			       struct loader_report *report,
			       struct engram_error *err)
{
	struct loader_shared shared = {.writer = writer, .progress = progress};
	enum engram_status status;

	status = loader_plan_init(
		&shared.plan, engram_segment_writer_header(writer), layer,
		or_default(options->block_bytes, BLOCK_DEFAULT, BLOCK_MAX),
		err);
	if (!status)
		status = choose_engine(&shared, options, err);
	if (!status)
		status = sources_open(&shared.sources, checkpoint, layer,
				      shared.plan.scale_bytes != 0,
				      options->direct, err);
	if (status)
		goto out;
	shared.align = sources_align(&shared.sources);
	pthread_mutex_init(&shared.lock, NULL);
	status = run(&shared, options, report, err);
	if (!status)
		status = outcome(&shared, checkpoint, layer, err);
	pthread_mutex_destroy(&shared.lock);
	sources_close(&shared.sources);
out:
	if (status)
		engram_error_context(err, "layer %" PRId32, layer->layer_id);
	return status;
}
