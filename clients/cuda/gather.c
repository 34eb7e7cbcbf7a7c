/* SPDX-License-Identifier: Apache-2.0 */
#include "gather_handle.h"

#include <stdlib.h>

#include "check.h"
#include "device.h"
#include "launch.h"

#define SLOTS_DFLT   2
#define ROWS_DFLT    196608
#define TIMEOUT_DFLT 20	   /* then the rows are read without engramd */
#define WAIT_VERSION 12000 /* of cuStreamWaitValue32 */

static enum engram_status find_wait(struct engram_cuda_gather *g,
				    struct engram_error *err)
{
	enum cudaDriverEntryPointQueryResult found;
	enum engram_status status;
	void *function = NULL;

	status = engram_cuda_status(
		cudaGetDriverEntryPointByVersion("cuStreamWaitValue32",
						 &function, WAIT_VERSION,
						 cudaEnableDefault, &found),
		"cudaGetDriverEntryPointByVersion", err);
	if (status)
		return status;
	if (!function || found != cudaDriverEntryPointSuccess) {
		engram_error_set(err, ENGRAM_EUNSUPPORTED,
				 "the driver has no cuStreamWaitValue32");
		engram_error_fix(err, "update the driver, or use "
				      "ENGRAM_PATH_UVA");
		return ENGRAM_EUNSUPPORTED;
	}
	*(void **)&g->wait_value = function;
	return ENGRAM_OK;
}

/* Zeroed states and counters, then the staged rows, each aligned to 256. */
static enum engram_status allocate(struct engram_cuda_gather *g,
				   struct engram_error *err)
{
	static const char zeros[512];
	size_t head = sizeof(zeros);
	size_t rows = (size_t)g->ring->shape.max_rows * g->ring->row_stride;
	enum engram_status status;
	char *block;

	_Static_assert(
		ENGRAM_RING_SLOTS * sizeof(struct engram_cuda_ring_state) +
				sizeof(struct engram_cuda_ring_counters) <=
			sizeof(zeros),
		"all of it is zeroed");
	status = engram_cuda_status(cudaMalloc((void **)&block, head + rows),
				    "room for a batch: cudaMalloc", err);
	if (status)
		return status;
	g->states = (struct engram_cuda_ring_state *)block;
	g->counters = (struct engram_cuda_ring_counters *)(g->states +
							   ENGRAM_RING_SLOTS);
	g->staging = (uint8_t *)block + head;
	return cuda_upload(block, zeros, head, err);
}

static enum engram_status make_side(struct engram_cuda_gather *g,
				    struct engram_error *err)
{
	enum engram_status status = engram_cuda_status(
		cudaStreamCreateWithFlags(&g->side, cudaStreamNonBlocking),
		"cudaStreamCreateWithFlags", err);

	if (!status)
		status = engram_cuda_status(
			cudaEventCreateWithFlags(&g->fork,
						 cudaEventDisableTiming),
			"cudaEventCreateWithFlags", err);
	if (!status)
		status = engram_cuda_status(
			cudaEventCreateWithFlags(&g->join,
						 cudaEventDisableTiming),
			"cudaEventCreateWithFlags", err);
	return status;
}

enum engram_status cuda_gather_register(const struct engram_ring *ring,
					int *registered,
					struct engram_error *err)
{
	enum engram_status status;
	void *device = NULL;

	status =
		engram_cuda_status(cudaHostRegister(ring->base, ring->bytes,
						    cudaHostRegisterMapped),
				   "registering a ring: cudaHostRegister", err);
	if (status)
		return status;
	*registered = 1;
	status = engram_cuda_status(
		cudaHostGetDevicePointer(&device, ring->base, 0),
		"cudaHostGetDevicePointer", err);
	if (status || device == ring->base)
		return status;
	return engram_error_set(err, ENGRAM_EUNSUPPORTED,
				"the device sees the ring at another address "
				"than the host");
}

void cuda_gather_unregister(const struct engram_ring *ring, int registered)
{
	if (registered)
		engram_cuda_ignore(cudaHostUnregister(ring->base));
}

/* Those of lookups. */
static uint32_t num_slots(const struct engram_cuda_gather_params *p)
{
	return p->slots ? p->slots : SLOTS_DFLT;
}

static enum engram_status open_host(struct engram_cuda_gather *g,
				    const struct engram_cuda_gather_params *p,
				    struct engram_error *err)
{
	const struct engram_gather_params host = {
		.slots = num_slots(p) + p->prefetch_slots,
		.max_rows = p->max_rows ? p->max_rows : ROWS_DFLT,
	};

	g->slots = num_slots(p);
	g->num_prefetched = p->prefetch_slots;
	if (engram_gather_open(g->table->table, &host, &g->host)) {
		*err = *engram_last_error();
		return err->status;
	}
	g->ring = engram_gather_ring(g->host);
	return ENGRAM_OK;
}

static int make_lock(struct engram_cuda_gather *g)
{
	pthread_condattr_t attr;
	int rc;

	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	rc = pthread_cond_init(&g->stop_cond, &attr);
	pthread_condattr_destroy(&attr);
	if (rc)
		return rc;
	rc = pthread_mutex_init(&g->lock, NULL);
	if (rc)
		pthread_cond_destroy(&g->stop_cond);
	return rc;
}

static void destroy(struct engram_cuda_gather *g)
{
	cuda_gather_watch_stop(g);
	cuda_gather_prefetch_close(g);
	if (g->join)
		engram_cuda_ignore(cudaEventDestroy(g->join));
	if (g->fork)
		engram_cuda_ignore(cudaEventDestroy(g->fork));
	if (g->side)
		engram_cuda_ignore(cudaStreamDestroy(g->side));
	cuda_gather_sieve_close(g);
	cuda_gather_rescue_close(g);
	cuda_gather_unregister(g->ring, g->registered);
	if (g->states)
		engram_cuda_ignore(cudaFree(g->states));
	engram_gather_close(g->host);
	pthread_mutex_destroy(&g->lock);
	pthread_cond_destroy(&g->stop_cond);
	free(g);
}

static enum engram_status open_on_device(
	struct engram_cuda_gather *g, const struct engram_cuda_gather_params *p,
	struct engram_error *err)
{
	struct engram_cuda_progress progress;
	enum engram_status status = find_wait(g, err);

	if (!status)
		status = open_host(g, p, err);
	if (!status)
		status = cuda_gather_register(g->ring, &g->registered, err);
	if (!status)
		status = cuda_gather_rescue_open(g, err);
	if (!status)
		status = allocate(g, err);
	if (!status)
		status = make_side(g, err);
	if (!status)
		status = cuda_gather_watch_start(g, err);
	if (!status && !p->no_measuring &&
	    g->table->placement == ENGRAM_CUDA_REGISTERED &&
	    !engram_cuda_progress(g->table, &progress) && progress.ready)
		status = cuda_gather_measure(g, err);
	/* both paths were measured without it */
	return status ? status : cuda_gather_sieve_open(g, p, err);
}

static enum engram_status check_params(
	const struct engram_cuda_gather_params *p, struct engram_error *err)
{
	if (p->timeout_ms < 0 || p->timeout_ms > 60000)
		return engram_invalid(err, "timeout_ms", "out of range",
				      "give 0 to 60000");
	if (p->prefetch_slots > ENGRAM_RING_SLOTS ||
	    num_slots(p) > ENGRAM_RING_SLOTS - p->prefetch_slots)
		return engram_invalid(err, "prefetch_slots",
				      "more than 8 slots in all",
				      "give fewer, or fewer slots");
	return ENGRAM_OK;
}

enum engram_status engram_cuda_gather_open(
	engram_cuda_table *table,
	const struct engram_cuda_gather_params *params,
	engram_cuda_gather **out)
{
	static const struct engram_cuda_gather_params defaults;
	struct engram_cuda_gather *g;
	struct cuda_scope scope;
	struct engram_error err;
	enum engram_status status;
	int rc;

	*out = NULL;
	params = params ? params : &defaults;
	if (check_params(params, &err))
		return engram_set_last_error(&err);
	g = calloc(1, sizeof(*g));
	if (!g) {
		engram_error_set(&err, ENGRAM_ENOMEM,
				 "no memory for a gather handle");
		return engram_set_last_error(&err);
	}
	rc = make_lock(g);
	if (rc) {
		engram_error_sys(&err, rc, "making a lock");
		free(g);
		return engram_set_last_error(&err);
	}
	g->table = table;
	g->timeout_ns = (uint64_t)(params->timeout_ms ? params->timeout_ms
						      : TIMEOUT_DFLT) *
			1000000u;
	status = cuda_enter(&scope, table->device, &err);
	if (!status) {
		status = open_on_device(g, params, &err);
		if (status)
			destroy(g);
		cuda_leave(&scope);
	} else {
		destroy(g);
	}
	if (status)
		return engram_set_last_error(&err);
	*out = g;
	return ENGRAM_OK;
}

enum engram_status engram_cuda_gather_close(engram_cuda_gather *gather)
{
	struct engram_table_info info;
	struct cuda_scope scope;
	struct engram_error err;
	enum engram_status status;

	if (!gather)
		return ENGRAM_OK;
	/* a forked child's copy of the handle */
	status = engram_table_info(gather->table->table, &info);
	if (status)
		return status;
	/* Whatever the device says, the host's part is let go of. */
	status = cuda_enter(&scope, gather->table->device, &err);
	destroy(gather);
	if (status)
		return engram_set_last_error(&err);
	cuda_leave(&scope);
	return ENGRAM_OK;
}

void engram_cuda_gather_wake(engram_cuda_gather *gather)
{
	engram_gather_wake(gather->host);
}

enum engram_status engram_cuda_gather_counters(
	engram_cuda_gather *gather, engram_stream stream,
	struct engram_cuda_gather_counters *out)
{
	struct engram_cuda_ring_counters counters;
	struct engram_error err;

	if (cuda_read_back(gather->table, &counters, gather->counters,
			   sizeof(counters), stream, &err))
		return engram_set_last_error(&err);
	*out = (struct engram_cuda_gather_counters){
		counters.posted, counters.fallback, counters.failed};
	return ENGRAM_OK;
}

enum engram_status engram_cuda_gather_stats(
	const engram_cuda_gather *gather, struct engram_cuda_gather_stats *out)
{
	const struct engram_ring_counts *told =
		&engram_ring_header(gather->ring)->counts;
	struct engram_table_info info;
	/* a forked child's copy of the handle */
	enum engram_status status =
		engram_table_info(gather->table->table, &info);

	if (status)
		return status;
	*out = (struct engram_cuda_gather_stats){
		.entries = (uint64_t)gather->sieve.sets * ENGRAM_SIEVE_WAYS,
		.device_bytes = gather->sieve_bytes,
		.rows = __atomic_load_n(&told->cache_lookups, __ATOMIC_RELAXED),
		.hits = __atomic_load_n(&told->cache_hits, __ATOMIC_RELAXED),
		.repeats = __atomic_load_n(&told->repeats, __ATOMIC_RELAXED),
		.fills = __atomic_load_n(&told->cache_fills, __ATOMIC_RELAXED),
	};
	return ENGRAM_OK;
}
