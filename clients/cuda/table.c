/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <time.h>

#include "check.h"
#include "device.h"
#include "launch.h"
#include "table.h"

/* ---- becoming ready ---- */

/* A forked child can not use its parent's handle. */
static enum engram_status check_fork(const struct engram_cuda_table *t)
{
	struct engram_table_info info;

	return engram_table_info(t->table, &info);
}

static enum engram_status not_ready(const struct engram_cuda_table *t)
{
	enum engram_status status = check_fork(t);
	struct engram_error err;

	if (status)
		return status;
	if (atomic_load(&t->state) == CUDA_FAILED)
		return engram_set_last_error(&t->failure);
	engram_error_set(&err, ENGRAM_ENOTREADY,
			 "%" PRIu64 " of %" PRIu64 " bytes are ready",
			 (uint64_t)atomic_load(&t->done_bytes),
			 t->ranges.bytes);
	engram_error_fix(&err, "call engram_cuda_wait first");
	engram_error_figures(&err, t->ranges.bytes,
			     atomic_load(&t->done_bytes));
	return engram_set_last_error(&err);
}

static enum engram_status check_ready(const struct engram_cuda_table *t)
{
	if (atomic_load_explicit(&t->state, memory_order_acquire) == CUDA_READY)
		return ENGRAM_OK;
	return not_ready(t);
}

enum engram_status engram_cuda_progress(const engram_cuda_table *table,
					struct engram_cuda_progress *out)
{
	enum engram_status status = check_fork(table);
	int state;

	if (status)
		return status;
	state = atomic_load(&table->state);
	*out = (struct engram_cuda_progress){
		.ready = state == CUDA_READY,
		.status = state == CUDA_FAILED ? table->failure.status
					       : ENGRAM_OK,
		.done_bytes = atomic_load(&table->done_bytes),
		.total_bytes = table->ranges.bytes,
		.seconds = (double)atomic_load(&table->nanoseconds) * 1e-9,
	};
	return ENGRAM_OK;
}

static struct timespec deadline_after(int timeout_ms)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	t.tv_sec += timeout_ms / 1000;
	t.tv_nsec += timeout_ms % 1000 * 1000000l;
	if (t.tv_nsec >= 1000000000) {
		t.tv_nsec -= 1000000000;
		t.tv_sec++;
	}
	return t;
}

enum engram_status engram_cuda_wait(engram_cuda_table *table, int timeout_ms)
{
	enum engram_status status = check_fork(table);
	struct timespec deadline = {0};
	struct engram_error err;
	int rc = 0, state;

	if (status)
		return status;
	if (timeout_ms >= 0)
		deadline = deadline_after(timeout_ms);
	pthread_mutex_lock(&table->lock);
	while ((state = atomic_load(&table->state)) == CUDA_PREPARING && !rc)
		rc = timeout_ms < 0
			     ? pthread_cond_wait(&table->changed, &table->lock)
			     : pthread_cond_timedwait(&table->changed,
						      &table->lock, &deadline);
	pthread_mutex_unlock(&table->lock);
	/* it may have become ready as the time ran out */
	if (state != CUDA_PREPARING)
		return check_ready(table);
	engram_error_set(&err, ENGRAM_ETIMEDOUT,
			 "not ready within %d ms: %" PRIu64 " of %" PRIu64
			 " bytes",
			 timeout_ms, (uint64_t)atomic_load(&table->done_bytes),
			 table->ranges.bytes);
	engram_error_fix(&err, "wait longer; engram_cuda_progress tells how "
			       "far it is");
	return engram_set_last_error(&err);
}

enum engram_status engram_cuda_info(const engram_cuda_table *table,
				    struct engram_cuda_info *out)
{
	enum engram_status status = check_fork(table);
	int registered;

	if (status)
		return status;
	registered = table->placement == ENGRAM_CUDA_REGISTERED;
	*out = (struct engram_cuda_info){
		.device = table->device,
		.placement = table->placement,
		.read_only = registered && table->read_only,
		.chunks = table->ranges.count,
		.registered_bytes =
			registered ? atomic_load(&table->done_bytes) : 0,
		.device_bytes = table->device_bytes,
		.register_seconds =
			(double)atomic_load(&table->nanoseconds) * 1e-9,
	};
	return ENGRAM_OK;
}

const engram_table *engram_cuda_host_table(const engram_cuda_table *table)
{
	return table->table;
}

/* ---- the hot calls ---- */

static enum engram_status check_layer(const struct engram_cuda_table *t,
				      uint32_t layer)
{
	struct engram_layer_info info;
	enum engram_status status = check_ready(t);

	/* also of the fork */
	return status ? status : engram_layer_info(t->table, layer, &info);
}

enum engram_status engram_cuda_hash_params(const engram_cuda_table *table,
					   struct engram_hash_params *out)
{
	struct engram_hash_params host;
	enum engram_status status = check_ready(table);

	/* also of the fork and of the token map */
	if (!status)
		status = engram_hash_params(table->table, &host);
	if (!status)
		*out = table->hash;
	return status;
}

/* May the rows be read by the device itself? */
static enum engram_status check_uva(const struct engram_cuda_table *t)
{
	struct engram_error err;

	if (t->placement != ENGRAM_CUDA_HOST)
		return ENGRAM_OK;
	engram_error_set(&err, ENGRAM_EUNSUPPORTED,
			 "the table was attached with ENGRAM_CUDA_HOST: no "
			 "kernel can read its rows");
	engram_error_fix(&err, "use engram_cuda_gather_lookup, or attach with "
			       "ENGRAM_CUDA_REGISTERED");
	return engram_set_last_error(&err);
}

enum engram_status engram_cuda_layer_source(const engram_cuda_table *table,
					    uint32_t layer,
					    struct engram_cuda_source *out)
{
	enum engram_status status = check_layer(table, layer);

	if (!status)
		status = check_uva(table);
	if (!status)
		*out = table->sources[layer];
	return status;
}

enum engram_status engram_cuda_table_hash(engram_cuda_table *table,
					  const struct engram_hash_batch *batch,
					  int32_t *out, engram_stream stream)
{
	struct engram_hash_params params;
	uint64_t *rejects = &table->counters->rejects;
	struct engram_error err;
	enum engram_status status = engram_cuda_hash_params(table, &params);

	if (status)
		return status;
	if (batch->slot_cache && batch->slot_mapping)
		status = engram_cuda_write_slots(&params, batch, rejects,
						 stream, &err);
	if (!status)
		status = engram_cuda_hash(&params, batch, out, rejects, stream,
					  &err);
	return status ? engram_set_last_error(&err) : ENGRAM_OK;
}

static enum engram_status has_parked(const struct engram_cuda_table *t)
{
	struct engram_table_info info;
	struct engram_error err;
	enum engram_status status = engram_table_info(t->table, &info);

	if (status)
		return status;
	engram_error_set(&err, ENGRAM_ENOTREADY,
			 "table \"%s\" has parked: its memory may be another "
			 "generation's by now",
			 info.name);
	engram_error_fix(&err, "change over by engram_cuda_table_prepare and "
			       "engram_cuda_table_refresh first");
	return engram_set_last_error(&err);
}

enum engram_status cuda_begin_lookup(
	const struct engram_cuda_table *t, uint32_t layer,
	const struct engram_cuda_lookup_params *params,
	struct engram_lookup_args *args)
{
	enum engram_status status = check_layer(t, layer);
	const struct engram_shard *shard;

	if (!status && t->parked)
		status = has_parked(t);
	if (status)
		return status;
	shard = &t->layers[layer].shard;
	*args = (struct engram_lookup_args){
		.ids = params->ids,
		.ids_token_stride = params->ids_token_stride,
		.ids_head_stride = params->ids_head_stride,
		.num_tokens = params->num_tokens,
		.head_begin = shard->head_begin,
		.local_heads = shard->local_heads,
		.total_heads = t->num_cols,
		.misses = &t->counters->misses,
	};
	return ENGRAM_OK;
}

static enum engram_status begin_uva(
	const struct engram_cuda_table *t, uint32_t layer,
	const struct engram_cuda_lookup_params *params,
	struct engram_lookup_args *args)
{
	enum engram_status status = check_uva(t);

	return status ? status : cuda_begin_lookup(t, layer, params, args);
}

enum engram_status engram_cuda_table_lookup(
	engram_cuda_table *table, uint32_t layer,
	const struct engram_cuda_lookup_params *params, uint16_t *out,
	engram_stream stream)
{
	struct engram_lookup_args args;
	struct engram_error err;
	enum engram_status status = begin_uva(table, layer, params, &args);

	if (status)
		return status;
	status = engram_cuda_lookup(&table->sources[layer], &args, out,
				    &params->grid, stream, &err);
	return status ? engram_set_last_error(&err) : ENGRAM_OK;
}

enum engram_status engram_cuda_table_lookup_raw(
	engram_cuda_table *table, uint32_t layer,
	const struct engram_cuda_lookup_params *params,
	const struct engram_raw_out *out, engram_stream stream)
{
	struct engram_lookup_args args;
	struct engram_error err;
	enum engram_status status = begin_uva(table, layer, params, &args);

	if (status)
		return status;
	status = engram_cuda_lookup_raw(&table->sources[layer], &args, out,
					&params->grid, stream, &err);
	return status ? engram_set_last_error(&err) : ENGRAM_OK;
}

enum engram_status engram_cuda_table_hash_lookup(
	engram_cuda_table *table, const struct engram_hash_batch *batch,
	int32_t *ids, uint16_t *const *outs,
	const struct engram_cuda_grid *grid, engram_stream stream)
{
	const struct engram_shard *shard = &table->layers[0].shard;
	const struct engram_cuda_step step = {
		.sources = table->sources,
		.outs = outs,
		.ids = ids,
		.head_begin = shard->head_begin,
		.local_heads = shard->local_heads,
		.misses = &table->counters->misses,
		.rejects = &table->counters->rejects,
	};
	struct engram_hash_params params;
	struct engram_error err;
	enum engram_status status = check_uva(table);

	if (!status)
		status = engram_cuda_hash_params(table, &params);
	if (status)
		return status;
	status = engram_cuda_hash_lookup(&params, batch, &step, grid, stream,
					 &err);
	return status ? engram_set_last_error(&err) : ENGRAM_OK;
}

/* To wait for a stream that is captured would spoil the capture. */
enum engram_status cuda_check_not_capturing(engram_stream stream,
					    const char *fix,
					    struct engram_error *err)
{
	enum cudaStreamCaptureStatus capture;
	enum engram_status status;

	status = engram_cuda_status(cudaStreamIsCapturing(stream, &capture),
				    "cudaStreamIsCapturing", err);
	if (status || capture == cudaStreamCaptureStatusNone)
		return status;
	return engram_invalid(err, "stream", "it is being captured", fix);
}

enum engram_status cuda_read_back(const struct engram_cuda_table *t, void *to,
				  const void *from, size_t bytes,
				  engram_stream stream,
				  struct engram_error *err)
{
	struct cuda_scope scope;
	enum engram_status status = check_fork(t);

	if (status) {
		*err = *engram_last_error();
		return status;
	}
	status = cuda_enter(&scope, t->device, err);
	if (status)
		return status;
	status = cuda_check_not_capturing(
		stream, "read the counters between replays", err);
	if (!status)
		status = engram_cuda_status(
			cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost,
					stream),
			"reading the counters: cudaMemcpyAsync", err);
	if (!status)
		status = engram_cuda_status(
			cudaStreamSynchronize(stream),
			"reading the counters: cudaStreamSynchronize", err);
	cuda_leave(&scope);
	return status;
}

enum engram_status engram_cuda_counters(engram_cuda_table *table,
					engram_stream stream,
					struct engram_cuda_counters *out)
{
	struct cuda_counters counters;
	struct engram_error err;

	if (cuda_read_back(table, &counters, table->counters, sizeof(counters),
			   stream, &err))
		return engram_set_last_error(&err);
	*out = (struct engram_cuda_counters){counters.misses, counters.rejects};
	return ENGRAM_OK;
}
