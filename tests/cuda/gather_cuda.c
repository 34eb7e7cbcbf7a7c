/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client that has rows gathered for a GPU (or the fake one), told what to do
 * on its standard input:
 *
 *	gather_cuda SOCKET TABLE PLACEMENT SLOTS MAX_ROWS TIMEOUT_MS
 *		    PREFETCH_SLOTS CACHE_BYTES DEDUPLICATE
 *
 *	lookup COUNT TOKENS SEED	each path, compared with engram_lookup
 *	raw TOKENS SEED LAYOUT		the same of rows as stored
 *	post COUNT TOKENS SEED		batches that are prefetched
 *	take COUNT TOKENS SEED		the same, compared
 *	skewed COUNT TOKENS SEED	lookups, of few rows for the most part
 *	full TOKENS SEED		one more than there are slots, or rows
 *	refresh				to the next generation
 *	capture PATH TOKENS		a graph of a lookup
 *	replay COUNT SEED		of that, with new ids each time
 *	faults				open a handle; each CUDA call fails once
 *
 * Each answers "ok ..." with the counters, or "failed: ...".
 */
#include <cuda_runtime_api.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engram_cuda_gather.h"
#ifdef FAKE_CUDA
#include "fake_cuda.h"
#endif

#define CUDA(call) check_cuda(call, #call)

static engram_client *client;
static engram_cuda_table *table;
static engram_cuda_gather *gather;
static struct engram_table_info info;
static cudaStream_t stream;
static int placement;
static int skewed; /* ids */
/* room for the largest batch, on both sides */
static int64_t most_tokens = 2048;
static int32_t *host_ids, *ids;
static uint16_t *got, *want, *out;

static void check_cuda(cudaError_t error, const char *call)
{
	if (!error)
		return;
	printf("failed: %s: %s\n", call, cudaGetErrorString(error));
	fflush(stdout);
	exit(1);
}

static void fail(const char *what)
{
	const struct engram_error *err = engram_last_error();

	printf("failed: %s: %s: %s\n", what, engram_status_name(err->status),
	       err->message);
	fflush(stdout);
	exit(1);
}

static void say(const char *what)
{
	printf("failed: %s\n", what);
	fflush(stdout);
	exit(1);
}

static void *allocate(size_t bytes)
{
	void *memory = malloc(bytes);

	if (!memory)
		exit(1);
	return memory;
}

static size_t id_bytes(int64_t tokens)
{
	return (size_t)tokens * info.num_cols * sizeof(*ids);
}

static size_t out_bytes(int64_t tokens)
{
	return (size_t)tokens * info.local_heads * info.dim * sizeof(*out);
}

static uint32_t random32(uint64_t *state)
{
	*state = *state * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(*state >> 33);
}

/* Random rows of a layer, some out of range. */
static void make_host_ids(uint32_t layer, int64_t tokens, uint64_t seed)
{
	struct engram_layer_info l;

	if (engram_layer_info(engram_cuda_host_table(table), layer, &l))
		fail("layer_info");
	for (int64_t i = 0; i < tokens * info.num_cols; i++) {
		uint64_t rows = l.total_rows;

		if (skewed && random32(&seed) % 4)
			rows = 97;
		host_ids[i] = random32(&seed) % 31 == 0
				      ? (int32_t)random32(&seed)
				      : (int32_t)(random32(&seed) % rows);
	}
}

/* To both sides. */
static void make_ids(uint32_t layer, int64_t tokens, uint64_t seed)
{
	make_host_ids(layer, tokens, seed);
	CUDA(cudaMemcpyAsync(ids, host_ids, id_bytes(tokens),
			     cudaMemcpyHostToDevice, stream));
}

static struct engram_cuda_lookup_params params_of(int64_t tokens)
{
	return (struct engram_cuda_lookup_params){.ids = ids,
						  .ids_token_stride =
							  info.num_cols,
						  .ids_head_stride = 1,
						  .num_tokens = tokens};
}

static void compare(uint32_t layer, int64_t tokens, const char *what)
{
	CUDA(cudaMemcpyAsync(got, out, out_bytes(tokens),
			     cudaMemcpyDeviceToHost, stream));
	CUDA(cudaStreamSynchronize(stream));
	if (engram_lookup(engram_cuda_host_table(table), layer, host_ids,
			  info.num_cols, 1, tokens, want, NULL))
		fail("lookup");
	if (!memcmp(got, want, out_bytes(tokens)))
		return;
	printf("failed: %s, %" PRId64 " tokens: other rows\n", what, tokens);
	fflush(stdout);
	exit(1);
}

static void lookup(int64_t tokens, uint64_t seed)
{
	static const char *const names[] = {"auto", "uva", "host", "hybrid"};
	struct engram_cuda_lookup_params params = params_of(tokens);

	for (uint32_t i = 0; i < info.num_layers; i++)
		for (int path = 0; path < 4; path++) {
			if (path == ENGRAM_PATH_UVA &&
			    placement == ENGRAM_CUDA_HOST)
				continue;
			/* skewed ones are for all paths the same */
			make_ids(i, tokens,
				 seed + i + (skewed ? 0 : 1000u * path));
			CUDA(cudaMemcpyAsync(out, want, out_bytes(tokens),
					     cudaMemcpyHostToDevice, stream));
			if (engram_cuda_gather_lookup(
				    gather, i, &params,
				    (enum engram_cuda_path)path, out, stream))
				fail(names[path]);
			compare(i, tokens, names[path]);
		}
}

/* Codes and scales in the memory of bf16 rows, which has twice the room. */
static void raw_lookup(int64_t tokens, uint64_t seed, int layout)
{
	struct engram_cuda_lookup_params params = params_of(tokens);
	struct engram_raw_out device = {.scale_layout = layout}, host = device;
	struct engram_layer_info l;
	struct engram_error err;
	size_t codes, bytes;

	for (int path = 0; path < 4; path++) {
		if (path == ENGRAM_PATH_UVA && placement == ENGRAM_CUDA_HOST)
			continue;
		make_ids(0, tokens, seed + (uint64_t)path);
		if (engram_layer_info(engram_cuda_host_table(table), 0, &l))
			fail("layer_info");
		codes = out_bytes(tokens) / 2;
		bytes = codes + engram_raw_scale_bytes(&l.rows, tokens,
						       info.local_heads,
						       host.scale_layout);
		host.codes = (uint8_t *)want;
		host.scales = host.codes + codes;
		device.codes = (uint8_t *)out;
		device.scales = device.codes + codes;
		CUDA(cudaMemsetAsync(out, 0x5a, bytes, stream));
		if (engram_cuda_gather_lookup_raw(gather, 0, &params,
						  (enum engram_cuda_path)path,
						  &device, stream))
			fail("raw");
		CUDA(cudaMemcpyAsync(got, out, bytes, cudaMemcpyDeviceToHost,
				     stream));
		CUDA(cudaStreamSynchronize(stream));
		if (engram_cpu_lookup_raw(
			    &l.rows,
			    &(struct engram_lookup_args){
				    .ids = host_ids,
				    .ids_token_stride = info.num_cols,
				    .ids_head_stride = 1,
				    .num_tokens = tokens,
				    .local_heads = info.local_heads,
				    .total_heads = info.num_cols},
			    &host, &err)) {
			printf("failed: %s\n", err.message);
			exit(1);
		}
		if (!memcmp(got, want, bytes))
			continue;
		printf("failed: raw, path %d, %" PRId64 " tokens: other rows\n",
		       path, tokens);
		fflush(stdout);
		exit(1);
	}
}

static enum engram_status post(int64_t tokens, uint64_t seed, uint64_t *misses)
{
	uint32_t layer = (uint32_t)(seed % info.num_layers);

	make_host_ids(layer, tokens, seed);
	return engram_cuda_gather_prefetch(gather, layer, host_ids,
					   info.num_cols, 1, tokens, misses);
}

static void take(int64_t tokens, uint64_t seed)
{
	uint32_t layer = (uint32_t)(seed % info.num_layers);
	int64_t taken;

	CUDA(cudaMemsetAsync(out, 0x5a, out_bytes(tokens), stream));
	if (engram_cuda_gather_take(gather, out, &taken, stream))
		fail("take");
	if (taken != tokens)
		say("other tokens");
	make_host_ids(layer, tokens, seed);
	compare(layer, tokens, "prefetched");
}

/* What is refused changes nothing. */
static void full(int64_t tokens, uint64_t seed)
{
	uint64_t posted = 0, misses = 0, before = 0;

	if (engram_cuda_gather_take(gather, out, NULL, stream) !=
	    ENGRAM_ENOTFOUND)
		say("taken from nowhere");
	if (post(most_tokens, seed, &before) != ENGRAM_EINVAL)
		say("posted more rows than there is room for");
	while (!post(tokens, seed + posted, &misses))
		posted++;
	if (engram_last_error()->status != ENGRAM_EBUSY)
		fail("full");
	if (before || !misses)
		say("misses that are not those of what was posted");
	for (uint64_t i = 0; i < posted; i++)
		take(tokens, seed + i);
	if (engram_cuda_gather_take(gather, out, NULL, stream) !=
	    ENGRAM_ENOTFOUND)
		say("taken twice");
}

static void refresh(void)
{
	const struct timespec pause = {.tv_nsec = 1000000};
	uint64_t generation = 0;
	enum engram_status status;

	while (status = engram_cuda_table_prepare(table, &generation),
	       !generation) {
		if (status && status != ENGRAM_ENOTREADY)
			fail("prepare");
		nanosleep(&pause, NULL);
	}
	if (engram_cuda_table_refresh(table, generation, stream))
		fail("refresh");
}

#ifdef FAKE_CUDA
/* What the device holds, and errors that nobody has taken. */
static int held(void)
{
	return fake_cuda.num_ranges + fake_cuda.allocations +
	       fake_cuda.streams + fake_cuda.events + fake_cuda.pending_errors;
}

/* A handle is made whole, or nothing is left of it. */
static void faults(void)
{
	struct engram_cuda_gather_params params = {.max_rows = 24,
						   .cache_bytes = 4096};
	engram_cuda_gather *other = NULL;
	int before = held(), at = 0, last = 0;

	fake_cuda.error = cudaErrorMemoryAllocation;
	do {
		fake_cuda.calls = 0;
		fake_cuda.fail_at = ++at;
		if (!engram_cuda_gather_open(table, &params, &other)) {
			/* it failed on the way out, where it changes nothing,
			 * or not at all */
			last = fake_cuda.calls < at;
			fake_cuda.fail_at = 0;
			if (engram_cuda_gather_close(other))
				fail("close");
		}
		fake_cuda.fail_at = 0;
		if (held() != before) {
			printf("failed: %d held, not %d, after call %d, %s\n",
			       held(), before, at, fake_cuda.failed);
			fflush(stdout);
			exit(1);
		}
	} while (!last);
}
#else
static cudaGraphExec_t graph;
static int64_t graph_tokens;

static void capture(int path, int64_t tokens)
{
	struct engram_cuda_lookup_params params = params_of(tokens);
	cudaGraph_t captured;

	graph_tokens = tokens;
	CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
	if (engram_cuda_gather_lookup(gather, 0, &params,
				      (enum engram_cuda_path)path, out, stream))
		fail("captured");
	CUDA(cudaStreamEndCapture(stream, &captured));
	CUDA(cudaGraphInstantiate(&graph, captured, 0));
	CUDA(cudaGraphDestroy(captured));
}

static void replay(uint64_t seed)
{
	make_ids(0, graph_tokens, seed);
	CUDA(cudaMemsetAsync(out, 0x5a, out_bytes(graph_tokens), stream));
	engram_cuda_gather_wake(gather);
	CUDA(cudaGraphLaunch(graph, stream));
	compare(0, graph_tokens, "replayed");
}
#endif

static void answer(void)
{
	struct engram_cuda_gather_counters c;
	struct engram_cuda_counters missed;
	struct engram_cuda_gather_stats s;

	if (engram_cuda_gather_counters(gather, stream, &c))
		fail("counters");
	if (engram_cuda_gather_stats(gather, &s) ||
	    engram_cuda_counters(table, stream, &missed))
		fail("stats");
	printf("ok posted=%" PRIu64 " fallback=%" PRIu64 " failed=%" PRIu64
	       " misses=%" PRIu64 " entries=%" PRIu64 " rows=%" PRIu64
	       " hits=%" PRIu64 " repeats=%" PRIu64 " fills=%" PRIu64 "\n",
	       c.posted, c.fallback, c.failed, missed.misses, s.entries, s.rows,
	       s.hits, s.repeats, s.fills);
	fflush(stdout);
}

static void obey(const char *line)
{
	unsigned int tokens, count;
	uint64_t seed;

	if (sscanf(line, "lookup %u %u %" SCNu64, &count, &tokens, &seed) ==
	    3) {
		while (count--)
			lookup(tokens, seed++);
	} else if (sscanf(line, "skewed %u %u %" SCNu64, &count, &tokens,
			  &seed) == 3) {
		skewed = 1;
		while (count--)
			lookup(tokens, seed++);
		skewed = 0;
	} else if (sscanf(line, "raw %u %" SCNu64 " %u", &tokens, &seed,
			  &count) == 3) {
		raw_lookup(tokens, seed, (int)count);
	} else if (sscanf(line, "post %u %u %" SCNu64, &count, &tokens,
			  &seed) == 3) {
		while (count--)
			if (post(tokens, seed++, NULL))
				fail("post");
	} else if (sscanf(line, "take %u %u %" SCNu64, &count, &tokens,
			  &seed) == 3) {
		while (count--)
			take(tokens, seed++);
	} else if (sscanf(line, "full %u %" SCNu64, &tokens, &seed) == 2) {
		full(tokens, seed);
	} else if (!strncmp(line, "refresh", 7)) {
		refresh();
#ifdef FAKE_CUDA
	} else if (!strncmp(line, "faults", 6)) {
		faults();
#else
	} else if (sscanf(line, "capture %u %u", &count, &tokens) == 2) {
		capture((int)count, tokens);
	} else if (sscanf(line, "replay %u %" SCNu64, &count, &seed) == 2) {
		while (count--)
			replay(seed++);
#endif
	} else {
		printf("failed: what is %s", line);
		exit(2);
	}
	answer();
}

static void attach(char **argv)
{
	const struct engram_open_params open = {.socket = argv[1],
						.connect_wait_ms = 10000};
	const struct engram_attach_params attaching = {.table = argv[2]};
	struct engram_cuda_attach_params cuda = {.device = -1};
	const struct engram_cuda_gather_params params = {
		.slots = (uint32_t)atoi(argv[4]),
		.max_rows = (uint32_t)atoi(argv[5]),
		.timeout_ms = atoi(argv[6]),
		.prefetch_slots = (uint32_t)atoi(argv[7]),
		.cache_bytes = strtoull(argv[8], NULL, 10),
		.deduplicate = atoi(argv[9]),
		.sieve_min_rows = 1,
	};

	placement = atoi(argv[3]);
	cuda.placement = (enum engram_cuda_placement)placement;
	CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	if (engram_open(&open, &client) ||
	    engram_cuda_attach(client, &attaching, &cuda, &table) ||
	    engram_cuda_wait(table, -1) ||
	    engram_table_info(engram_cuda_host_table(table), &info))
		fail("attach");
	if (engram_cuda_gather_open(table, &params, &gather))
		fail("gather_open");
}

int main(int argc, char **argv)
{
	char line[256];

	if (argc != 10)
		return 2;
	attach(argv);
	host_ids = allocate(id_bytes(most_tokens));
	got = allocate(out_bytes(most_tokens));
	want = allocate(out_bytes(most_tokens));
	memset(want, 0x5a, out_bytes(most_tokens));
	CUDA(cudaMalloc((void **)&ids, id_bytes(most_tokens)));
	CUDA(cudaMalloc((void **)&out, out_bytes(most_tokens)));
	answer();
	while (fgets(line, sizeof(line), stdin))
		obey(line);
	CUDA(cudaStreamSynchronize(stream));
	if (engram_cuda_gather_close(gather) || engram_cuda_detach(table) ||
	    engram_close(client))
		fail("close");
	CUDA(cudaFree(ids));
	CUDA(cudaFree(out));
	CUDA(cudaStreamDestroy(stream));
	free(host_ids);
	free(got);
	free(want);
	return 0;
}
