/* SPDX-License-Identifier: Apache-2.0 */
/* Every chunk of a segment looked at; of a copy, made first. */
#include <inttypes.h>
#include <pthread.h>
#include <string.h>

#include "engram_records.h"
#include "loader.h"
#include "loader_memory.h"
#include "loader_threads.h"
#include "numa.h"

struct verify {
	const struct engram_segment_map *map;
	const struct engram_segment_map *from; /* copy it from there, or NULL */
	struct loader_memory memory;	       /* behind `map` then */
	_Atomic bool stop;		       /* a thread has failed */
	struct loader_progress *progress;
	struct loader_layer_progress *layer;
	_Atomic uint64_t next_chunk;
	pthread_mutex_t lock; /* of the rest */
	enum engram_status status;
	uint64_t chunk; /* the first bad one */
	struct engram_error err;
};

/* Threads meet bad chunks in any order: keep the lowest. */
static void found(struct verify *v, uint64_t chunk, enum engram_status status,
		  const struct engram_error *err)
{
	pthread_mutex_lock(&v->lock);
	if (!v->status || chunk < v->chunk) {
		v->status = status;
		v->chunk = chunk;
		v->err = *err;
	}
	pthread_mutex_unlock(&v->lock);
	if (v->from) {
		atomic_store(&v->stop, true);
		loader_memory_wake(&v->memory);
	}
	/* Lower chunks are claimed already; nobody need start more. */
	atomic_store(&v->next_chunk, v->map->header->checksums.count);
}

/* Past the caches, so that what is checked then is what memory has. */
static enum engram_status copy_rows(struct verify *v, uint64_t begin,
				    uint64_t end, struct engram_error *err)
{
	const struct engram_segment_header *h = v->map->header;
	char *base = engram_segment_writer_base(v->memory.writer);
	enum engram_status status;

	status = loader_memory_have_rows(&v->memory, begin, end, true, &v->stop,
					 err);
	/* Without memory behind it: another thread has failed. */
	if (status || atomic_load(&v->stop))
		return status;
	engram_cpu_stream(base + h->codes_offset + begin * h->code_stride,
			  (const char *)v->from->codes + begin * h->code_stride,
			  (end - begin) * h->code_stride);
	if (h->record_layout == ENGRAM_SPLIT && h->scale_stride)
		engram_cpu_stream(
			base + h->scales_offset + begin * h->scale_stride,
			(const char *)v->from->scales + begin * h->scale_stride,
			(end - begin) * h->scale_stride);
	engram_cpu_stream_end();
	return ENGRAM_OK;
}

static enum engram_status do_chunk(struct verify *v, uint64_t begin,
				   uint64_t end, struct engram_error *err)
{
	enum engram_status status =
		v->from ? copy_rows(v, begin, end, err) : ENGRAM_OK;

	if (status || atomic_load(&v->stop))
		return status;
	return engram_segment_verify(v->map, begin, end, NULL, err);
}

static void *verify_worker(void *ctx)
{
	struct verify *v = ctx;
	const struct engram_segment_header *h = v->map->header;
	struct engram_error err = {0};
	enum engram_status status;

	while (!atomic_load(&v->progress->cancel)) {
		const uint64_t chunk = atomic_fetch_add(&v->next_chunk, 1);
		const uint64_t begin = chunk * h->chunk_rows;
		uint64_t end = begin + h->chunk_rows, bytes;

		if (chunk >= h->checksums.count)
			break;
		if (end > h->rows)
			end = h->rows;
		status = do_chunk(v, begin, end, &err);
		if (status) {
			engram_error_context(&err, "chunk %" PRIu64, chunk);
			if (status == ENGRAM_ECHECKSUM)
				engram_error_fix(&err,
						 "reload the table; if it "
						 "recurs, suspect memory");
			found(v, chunk, status, &err);
			break;
		}
		bytes = (end - begin) * engram_segment_record_bytes(h);
		atomic_fetch_add(&v->layer->bytes_verified, bytes);
		atomic_fetch_add(&v->progress->bytes_verified, bytes);
	}
	return NULL;
}

static enum engram_status run(struct verify *v, uint32_t threads,
			      struct engram_error *err)
{
	const uint64_t chunks = v->map->header->checksums.count;
	enum engram_status status;

	threads = loader_threads_wanted(threads);
	if (threads > chunks)
		threads = (uint32_t)chunks;
	pthread_mutex_init(&v->lock, NULL);
	loader_span_begin(&v->layer->verifying);
	status = loader_threads_run(&threads, verify_worker, v, err);
	loader_span_end(&v->layer->verifying);
	pthread_mutex_destroy(&v->lock);
	if (status)
		return status;
	if (v->status) {
		if (err)
			*err = v->err;
		return v->status;
	}
	if (atomic_load(&v->progress->cancel)) {
		engram_error_set(err, ENGRAM_ECANCELED,
				 "the check was cancelled");
		engram_error_fix(err, "verify the table again");
		return ENGRAM_ECANCELED;
	}
	return ENGRAM_OK;
}

enum engram_status loader_verify(const struct engram_segment_map *map,
				 uint32_t threads,
				 struct loader_progress *progress,
				 struct loader_layer_progress *layer,
				 struct engram_error *err)
{
	struct verify v = {.map = map, .progress = progress, .layer = layer};

	return run(&v, threads, err);
}

enum engram_status loader_copy(const struct engram_segment_map *from,
			       const struct engram_segment_map *to,
			       struct engram_segment_writer *writer,
			       const struct loader_options *options,
			       struct loader_progress *progress,
			       struct loader_layer_progress *layer,
			       struct engram_error *err)
{
	const struct engram_segment_header *h = from->header;
	struct verify v = {
		.map = to, .from = from, .progress = progress, .layer = layer};
	enum engram_status status;
	cpu_set_t before;

	memcpy(engram_segment_writer_checksums(writer),
	       engram_segment_at(h, &h->checksums),
	       h->checksums.count * sizeof(uint64_t));
	status = loader_memory_init(&v.memory, writer, &progress->bytes_touched,
				    err);
	if (status)
		return status;
	numa_go_near(options->cores, &before);
	status = run(&v, options->threads, err);
	numa_go_back(options->cores, &before);
	loader_memory_free(&v.memory);
	return status;
}
