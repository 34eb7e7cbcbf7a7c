/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <pthread.h>

#include "loader.h"
#include "loader_threads.h"

struct verify {
	const struct engram_segment_map *map;
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
	/* Lower chunks are claimed already; nobody need start more. */
	atomic_store(&v->next_chunk, v->map->header->checksums.count);
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
		status = engram_segment_verify(v->map, begin, end, NULL, &err);
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

enum engram_status loader_verify(const struct engram_segment_map *map,
				 uint32_t threads,
				 struct loader_progress *progress,
				 struct loader_layer_progress *layer,
				 struct engram_error *err)
{
	struct verify v = {.map = map, .progress = progress, .layer = layer};
	enum engram_status status;

	threads = loader_threads_wanted(threads);
	if (threads > map->header->checksums.count)
		threads = (uint32_t)map->header->checksums.count;
	pthread_mutex_init(&v.lock, NULL);
	loader_span_begin(&layer->verifying);
	status = loader_threads_run(&threads, verify_worker, &v, err);
	loader_span_end(&layer->verifying);
	pthread_mutex_destroy(&v.lock);
	if (status)
		return status;
	if (v.status) {
		if (err)
			*err = v.err;
		return v.status;
	}
	if (atomic_load(&progress->cancel)) {
		engram_error_set(err, ENGRAM_ECANCELED,
				 "the check was cancelled");
		engram_error_fix(err, "verify the table again");
		return ENGRAM_ECANCELED;
	}
	return ENGRAM_OK;
}
