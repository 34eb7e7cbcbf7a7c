/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An engine's steps, hash and rows of all layers, on a GPU (or the fake one)
 * while the table is reloaded.  On a GPU a step is a captured graph, captured
 * once.  Told what to do on its standard input:
 *
 *	refresh_cuda SOCKET TABLE PLACEMENT TOKENS
 *
 *	step COUNT SEED		steps with new tokens, compared with the CPU's
 *	begin			to prepare, and not wait for it
 *	prepare			until it is prepared, or nothing is new
 *	refresh GENERATION SEED	between two steps that are both under way; the
 *				first one's rows are those of before
 *	move GENERATION SEED	the same with nothing under way
 *	park			have the table written in place; lookups refuse
 *	captured		refuses to change over, and to park, while a
 *				stream is captured
 *	fault N			prepare and change over, the Nth CUDA call fails
 *	run MS			steps for so long, changing over by itself
 *
 * Each answers "ok generation=N status=N ranges=N ...", or "failed: ...".
 * `run` tells how long steps took, in microseconds: alone, and while a
 * generation was prepared or let go of.
 */
#include <cuda_runtime_api.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engram_cuda.h"
#ifdef FAKE_CUDA
#include "fake_cuda.h"
#endif

#define CUDA(call)  check_cuda(call, #call)
#define LAYERS_MAX  8
#define SAMPLES_MAX 2000000

/* One step's input and output, on the device. */
struct arrays {
	int32_t *tokens, *ids;
	int64_t *positions;
	int32_t *starts;
	uint16_t *rows[LAYERS_MAX];
};

struct times {
	float *us;
	int count;
};

static engram_client *client;
static engram_cuda_table *table;
static struct engram_table_info info;
static cudaStream_t stream;
static int64_t num_tokens;
static struct arrays device, got, want;
static struct times alone, beside;

static void fail(const char *what)
{
	const struct engram_error *err = engram_last_error();

	printf("failed: %s: %s: %s\n", what, engram_status_name(err->status),
	       err->message);
	fflush(stdout);
	exit(1);
}

static void check_cuda(cudaError_t error, const char *call)
{
	if (!error)
		return;
	printf("failed: %s: %s\n", call, cudaGetErrorString(error));
	fflush(stdout);
	exit(1);
}

static size_t id_count(void)
{
	return (size_t)num_tokens * info.num_layers * info.num_cols;
}

static size_t row_bytes(void)
{
	return (size_t)num_tokens * info.local_heads * info.dim *
	       sizeof(uint16_t);
}

static void *take(size_t bytes, int on_device)
{
	void *memory = NULL;

	if (on_device)
		CUDA(cudaMalloc(&memory, bytes));
	else
		memory = malloc(bytes);
	if (!memory)
		exit(1);
	return memory;
}

static void make_arrays(struct arrays *a, int on_device)
{
	size_t n = (size_t)num_tokens;

	a->tokens = take(n * sizeof(*a->tokens), on_device);
	a->positions = take(n * sizeof(*a->positions), on_device);
	a->starts = take(2 * sizeof(*a->starts), on_device);
	a->ids = take(id_count() * sizeof(*a->ids), on_device);
	for (uint32_t i = 0; i < info.num_layers; i++)
		a->rows[i] = take(row_bytes(), on_device);
}

static struct engram_hash_batch batch_of(const struct arrays *a)
{
	return (struct engram_hash_batch){.num_tokens = num_tokens,
					  .input_ids = a->tokens,
					  .input_stride = 1,
					  .positions = a->positions,
					  .position_stride = 1,
					  .query_start_loc = a->starts,
					  .query_stride = 1,
					  .num_requests = 1};
}

static void launch(void)
{
	const struct engram_hash_batch batch = batch_of(&device);

	if (engram_cuda_table_hash(table, &batch, device.ids, stream))
		fail("hash");
	for (uint32_t i = 0; i < info.num_layers; i++) {
		const struct engram_cuda_lookup_params lookup = {
			.ids = device.ids + (size_t)i * info.num_cols,
			.ids_token_stride =
				(int64_t)info.num_layers * info.num_cols,
			.ids_head_stride = 1,
			.num_tokens = num_tokens,
		};

		if (engram_cuda_table_lookup(table, i, &lookup, device.rows[i],
					     stream))
			fail("lookup");
	}
}

#ifdef FAKE_CUDA
static void capture(void)
{
}

static void replay(void)
{
	launch();
}
#else
static cudaGraphExec_t graph;

static void capture(void)
{
	cudaGraph_t captured;

	CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
	launch();
	CUDA(cudaStreamEndCapture(stream, &captured));
	CUDA(cudaGraphInstantiate(&graph, captured, 0));
	CUDA(cudaGraphDestroy(captured));
}

static void replay(void)
{
	CUDA(cudaGraphLaunch(graph, stream));
}
#endif

/* New tokens on both sides. */
static void feed(uint64_t seed)
{
	for (int64_t i = 0; i < num_tokens; i++) {
		seed = seed * 6364136223846793005u + 1442695040888963407u;
		want.tokens[i] =
			(int32_t)((seed >> 33) % (uint64_t)info.token_map_len);
		want.positions[i] = i;
	}
	want.starts[0] = 0;
	want.starts[1] = (int32_t)num_tokens;
	CUDA(cudaMemcpyAsync(device.tokens, want.tokens,
			     (size_t)num_tokens * sizeof(*want.tokens),
			     cudaMemcpyHostToDevice, stream));
	CUDA(cudaMemcpyAsync(device.positions, want.positions,
			     (size_t)num_tokens * sizeof(*want.positions),
			     cudaMemcpyHostToDevice, stream));
	CUDA(cudaMemcpyAsync(device.starts, want.starts,
			     2 * sizeof(*want.starts), cudaMemcpyHostToDevice,
			     stream));
}

/* What the rows are by the generation that the handle has now. */
static void expect(void)
{
	const engram_table *t = engram_cuda_host_table(table);
	const struct engram_hash_batch batch = batch_of(&want);

	if (engram_hash(t, &batch, want.ids))
		fail("engram_hash");
	for (uint32_t i = 0; i < info.num_layers; i++)
		if (engram_lookup(t, i, want.ids + (size_t)i * info.num_cols,
				  (int64_t)info.num_layers * info.num_cols, 1,
				  num_tokens, want.rows[i], NULL))
			fail("engram_lookup");
}

static void fetch(void)
{
	for (uint32_t i = 0; i < info.num_layers; i++)
		CUDA(cudaMemcpyAsync(got.rows[i], device.rows[i], row_bytes(),
				     cudaMemcpyDeviceToHost, stream));
}

static void compare(const char *what)
{
	CUDA(cudaStreamSynchronize(stream));
	for (uint32_t i = 0; i < info.num_layers; i++) {
		if (!memcmp(got.rows[i], want.rows[i], row_bytes()))
			continue;
		printf("failed: %s: other rows of layer %" PRIu32 "\n", what,
		       i);
		fflush(stdout);
		exit(1);
	}
}

static void step(uint64_t seed)
{
	feed(seed);
	replay();
	fetch();
	expect();
	compare("step");
}

static enum engram_status prepare(uint64_t *generation)
{
	const struct timespec ms = {.tv_nsec = 1000000};
	enum engram_status status;

	while (status = engram_cuda_table_prepare(table, generation),
	       status == ENGRAM_ENOTREADY)
		nanosleep(&ms, NULL);
	return status;
}

static void move(uint64_t generation, uint64_t seed)
{
	if (engram_cuda_table_refresh(table, generation, stream))
		fail("refresh");
	step(seed);
}

static void refresh(uint64_t generation, uint64_t seed)
{
	feed(seed);
	expect();
	replay();
	fetch();
	/* all of that may still be to come */
	if (engram_cuda_table_refresh(table, generation, stream))
		fail("refresh");
	compare("before");
	step(seed);
}

/* A graph that was captured before is not launched meanwhile. */
static enum engram_status park(void)
{
	const struct engram_cuda_lookup_params lookup = {.ids = device.ids};
	enum engram_status status = engram_cuda_table_park(table, stream);

	if (!status &&
	    engram_cuda_table_lookup(table, 0, &lookup, device.rows[0],
				     stream) != ENGRAM_ENOTREADY)
		fail("lookup of what has parked");
	return status;
}

static void captured(void)
{
	enum engram_status status, parked;
#ifdef FAKE_CUDA
	fake_cuda.capturing = 1;
	status = engram_cuda_table_refresh(table, 0, stream);
	parked = engram_cuda_table_park(table, stream);
	fake_cuda.capturing = 0;
#else
	cudaGraph_t none;

	CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
	status = engram_cuda_table_refresh(table, 0, stream);
	parked = engram_cuda_table_park(table, stream);
	CUDA(cudaStreamEndCapture(stream, &none));
	CUDA(cudaGraphDestroy(none));
#endif
	if (status != ENGRAM_EINVAL || parked != ENGRAM_EINVAL)
		fail("captured");
}

#ifdef FAKE_CUDA
/* Whatever call fails, the handle goes on with one generation or the other. */
static void fault(int at)
{
	uint64_t generation = 0;
	int moved, calls;

	fake_cuda.error = cudaErrorMemoryAllocation;
	fake_cuda.calls = 0;
	fake_cuda.fail_at = at;
	moved = !prepare(&generation) && generation &&
		!engram_cuda_table_refresh(table, generation, stream);
	calls = fake_cuda.calls;
	while (moved && engram_cuda_table_prepare(table, &generation) ==
				ENGRAM_ENOTREADY)
		;
	fake_cuda.fail_at = 0;
	step((uint64_t)at);
	if (fake_cuda.pending_errors) {
		printf("failed: an error is left by %s\n", fake_cuda.failed);
		fflush(stdout);
		exit(1);
	}
	printf("moved=%d calls=%d ", moved, calls);
}
#endif

static float microseconds(const struct timespec *since)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (float)(now.tv_sec - since->tv_sec) * 1e6f +
	       (float)(now.tv_nsec - since->tv_nsec) * 1e-3f;
}

static void run(unsigned int ms)
{
	struct timespec start, begun;
	uint64_t generation = 0, seed = ms;
	unsigned int moves = 0, steps = 0;

	clock_gettime(CLOCK_MONOTONIC, &start);
	alone.count = beside.count = 0;
	while (microseconds(&start) < (float)ms * 1e3f) {
		enum engram_status status =
			engram_cuda_table_prepare(table, &generation);
		struct times *times =
			status == ENGRAM_ENOTREADY ? &beside : &alone;

		if (status && status != ENGRAM_ENOTREADY)
			fail("prepare");
		if (generation) {
			if (engram_cuda_table_refresh(table, generation,
						      stream))
				fail("refresh");
			moves++;
			times = &beside;
		}
		feed(seed++);
		CUDA(cudaStreamSynchronize(stream));
		clock_gettime(CLOCK_MONOTONIC, &begun);
		replay();
		CUDA(cudaStreamSynchronize(stream));
		if (times->count < SAMPLES_MAX)
			times->us[times->count++] = microseconds(&begun);
		/* each compared after a move, else now and then */
		if (generation || steps % 64 == 0) {
			fetch();
			expect();
			compare("run");
		}
		steps++;
	}
	printf("moves=%u steps=%u ", moves, steps);
}

static int ascending(const void *a, const void *b)
{
	const float x = *(const float *)a, y = *(const float *)b;

	return (x > y) - (x < y);
}

static void print_times(const char *name, struct times *times)
{
	static const int per_mille[] = {500, 900, 990, 999};

	qsort(times->us, (size_t)times->count, sizeof(*times->us), ascending);
	for (size_t i = 0; i < sizeof(per_mille) / sizeof(per_mille[0]); i++)
		printf("%s_p%d=%.1f ", name, per_mille[i],
		       times->count ? times->us[(size_t)times->count *
						(size_t)per_mille[i] / 1000]
				    : 0);
	printf("%s_count=%d ", name, times->count);
}

static void answer(enum engram_status status, uint64_t generation)
{
	struct engram_cuda_info cuda;

	if (engram_cuda_info(table, &cuda) ||
	    engram_table_info(engram_cuda_host_table(table), &info))
		fail("info");
	printf("ok generation=%" PRIu64 " status=%d prepared=%" PRIu64
	       " registered=%" PRIu64 " device_bytes=%" PRIu64,
	       info.generation, (int)status, generation, cuda.registered_bytes,
	       cuda.device_bytes);
#ifdef FAKE_CUDA
	printf(" ranges=%d allocations=%d registered_ever=%d",
	       fake_cuda.num_ranges, fake_cuda.allocations,
	       fake_cuda.registered_ever);
#endif
	printf("\n");
	fflush(stdout);
}

static void obey(const char *line)
{
	enum engram_status status = ENGRAM_OK;
	uint64_t seed, generation = 0;
	unsigned int count;

	if (sscanf(line, "step %u %" SCNu64, &count, &seed) == 2) {
		while (count--)
			step(seed++);
	} else if (!strncmp(line, "begin", 5)) {
		status = engram_cuda_table_prepare(table, &generation);
	} else if (!strncmp(line, "prepare", 7)) {
		status = prepare(&generation);
	} else if (sscanf(line, "refresh %" SCNu64 " %" SCNu64, &generation,
			  &seed) == 2) {
		refresh(generation, seed);
	} else if (sscanf(line, "move %" SCNu64 " %" SCNu64, &generation,
			  &seed) == 2) {
		move(generation, seed);
	} else if (!strncmp(line, "park", 4)) {
		status = park();
	} else if (!strncmp(line, "captured", 8)) {
		captured();
#ifdef FAKE_CUDA
	} else if (sscanf(line, "fault %u", &count) == 1) {
		fault((int)count);
#endif
	} else if (sscanf(line, "run %u", &count) == 1) {
		run(count);
		print_times("alone", &alone);
		print_times("beside", &beside);
	} else {
		printf("failed: what is %s", line);
		exit(2);
	}
	answer(status, generation);
}

static void attach(char **argv)
{
	const struct engram_open_params open = {.socket = argv[1],
						.name = "refresh_cuda",
						.connect_wait_ms = 10000};
	const struct engram_attach_params attaching = {.table = argv[2]};
	struct engram_cuda_attach_params cuda = {.device = -1};

	cuda.placement = (enum engram_cuda_placement)atoi(argv[3]);
	num_tokens = atoi(argv[4]);
	CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	if (engram_open(&open, &client) ||
	    engram_cuda_attach(client, &attaching, &cuda, &table) ||
	    engram_cuda_wait(table, -1) ||
	    engram_table_info(engram_cuda_host_table(table), &info))
		fail("attach");
	if (info.num_layers > LAYERS_MAX)
		exit(2);
}

int main(int argc, char **argv)
{
	char line[256];

	if (argc != 5)
		return 2;
	attach(argv);
	make_arrays(&device, 1);
	make_arrays(&got, 0);
	make_arrays(&want, 0);
	alone.us = take(SAMPLES_MAX * sizeof(float), 0);
	beside.us = take(SAMPLES_MAX * sizeof(float), 0);
	capture();
	answer(ENGRAM_OK, 0);
	while (fgets(line, sizeof(line), stdin))
		obey(line);
	CUDA(cudaStreamSynchronize(stream));
	if (engram_cuda_detach(table) || engram_close(client))
		fail("close");
#ifdef FAKE_CUDA
	if (fake_cuda.num_ranges || fake_cuda.events) {
		printf("failed: %d ranges, %d events are left\n",
		       fake_cuda.num_ranges, fake_cuda.events);
		return 1;
	}
#endif
	/* what is left is the process's, and goes with it */
	return 0;
}
