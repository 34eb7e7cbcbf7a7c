/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A table attached by libengram_cuda, from a sidecar of the tests' own.  Built
 * twice: with a fake CUDA runtime (test_cuda_attach), and for a GPU
 * (gpu_attach), where the same must hold.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include <cuda_runtime_api.h>

#include "engram_cuda.h"
#include "fake.h"
#ifdef FAKE_CUDA
#include "fake_cuda.h"
#endif

#define TOKENS 64

struct setting {
	struct fake_table table;
	struct fake fake;
	engram_client *client;
};

#define CUDA(call) assert_int_equal((call), cudaSuccess)

static int set_up(void **state)
{
	struct setting *s = calloc(1, sizeof(*s));
	struct engram_open_params params = {.name = "test"};

	assert_non_null(s);
	/* memfd is sealed against writing */
	fake_table_make(&s->table, &(struct fake_twist){.in_shm = 1});
	fake_start(&s->fake, &s->table, fake_serve);
	params.socket = s->fake.path;
	assert_int_equal(engram_open(&params, &s->client), ENGRAM_OK);
	*state = s;
	return 0;
}

static int tear_down(void **state)
{
	struct setting *s = *state;

	assert_int_equal(engram_close(s->client), ENGRAM_OK);
	fake_stop(&s->fake);
	assert_int_equal(s->fake.leases, 0);
	fake_table_free(&s->table);
	free(s);
	return 0;
}

static engram_cuda_table *attach(struct setting *s, uint32_t rank,
				 uint32_t size,
				 const struct engram_cuda_attach_params *cuda)
{
	struct engram_attach_params params = {
		.table = "demo", .tp_rank = rank, .tp_size = size};
	engram_cuda_table *t;
	enum engram_status status =
		engram_cuda_attach(s->client, &params, cuda, &t);

	if (status)
		fail_msg("attach: %s", engram_last_error()->message);
	if (engram_cuda_wait(t, -1))
		fail_msg("wait: %s", engram_last_error()->message);
	return t;
}

/* On the device and back. */
static void *to_device(const void *from, size_t bytes)
{
	void *to;

	CUDA(cudaMalloc(&to, bytes));
	CUDA(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice));
	return to;
}

static void from_device(void *to, void *from, size_t bytes)
{
	CUDA(cudaDeviceSynchronize());
	CUDA(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost));
	CUDA(cudaFree(from));
}

struct sizes {
	uint32_t layers, cols, heads, dim;
};

static struct sizes sizes_of(const engram_cuda_table *t)
{
	struct engram_table_info info;

	assert_int_equal(engram_table_info(engram_cuda_host_table(t), &info),
			 ENGRAM_OK);
	return (struct sizes){info.num_layers, info.num_cols, info.local_heads,
			      info.dim};
}

/* Ids of one request of TOKENS, by the handle and by the CPU: equal. */
static int32_t *hashed(engram_cuda_table *t)
{
	struct sizes n = sizes_of(t);
	size_t count = (size_t)TOKENS * n.layers * n.cols;
	int32_t *ids = malloc(count * sizeof(*ids));
	int32_t *got = malloc(count * sizeof(*got)), *device;
	int32_t tokens[TOKENS], starts[2] = {0, TOKENS};
	int64_t positions[TOKENS];
	struct engram_hash_batch batch = {
		.num_tokens = TOKENS,
		.input_ids = tokens,
		.input_stride = 1,
		.positions = positions,
		.position_stride = 1,
		.query_start_loc = starts,
		.query_stride = 1,
		.num_requests = 1,
	};

	for (int i = 0; i < TOKENS; i++) {
		tokens[i] = i * 7 % FAKE_VOCAB;
		positions[i] = i;
	}
	assert_int_equal(engram_hash(engram_cuda_host_table(t), &batch, ids),
			 ENGRAM_OK);
	batch.input_ids = to_device(tokens, sizeof(tokens));
	batch.positions = to_device(positions, sizeof(positions));
	batch.query_start_loc = to_device(starts, sizeof(starts));
	device = to_device(got, count * sizeof(*got));
	if (engram_cuda_table_hash(t, &batch, device, NULL))
		fail_msg("hash: %s", engram_last_error()->message);
	from_device(got, device, count * sizeof(*got));
	CUDA(cudaFree((void *)(uintptr_t)batch.input_ids));
	CUDA(cudaFree((void *)(uintptr_t)batch.positions));
	CUDA(cudaFree((void *)(uintptr_t)batch.query_start_loc));
	assert_memory_equal(got, ids, count * sizeof(*got));
	free(got);
	return ids;
}

static void check_layer(engram_cuda_table *t, uint32_t layer,
			const int32_t *ids, int32_t *device_ids)
{
	struct sizes n = sizes_of(t);
	size_t bytes = (size_t)TOKENS * n.heads * n.dim * sizeof(uint16_t);
	uint16_t *want = malloc(bytes), *got = malloc(bytes), *device;
	size_t at = (size_t)layer * n.cols;
	struct engram_cuda_lookup_params params = {
		.ids = device_ids + at,
		.ids_token_stride = (int64_t)n.layers * n.cols,
		.ids_head_stride = 1,
		.num_tokens = TOKENS,
	};

	assert_int_equal(engram_lookup(engram_cuda_host_table(t), layer,
				       ids + at, params.ids_token_stride, 1,
				       TOKENS, want, NULL),
			 ENGRAM_OK);
	memset(got, 0xa5, bytes);
	device = to_device(got, bytes);
	if (engram_cuda_table_lookup(t, layer, &params, device, NULL))
		fail_msg("lookup: %s", engram_last_error()->message);
	from_device(got, device, bytes);
	assert_memory_equal(got, want, bytes);
	free(want);
	free(got);
}

/* Hash and rows of all layers are those of the CPU; nothing is missed but an
 * id that is nobody's. */
static void check_use(engram_cuda_table *t)
{
	struct sizes n = sizes_of(t);
	size_t bytes = (size_t)TOKENS * n.layers * n.cols * sizeof(int32_t);
	struct engram_cuda_counters before, after;
	int32_t *ids = hashed(t), *device_ids;

	assert_int_equal(engram_cuda_counters(t, NULL, &before), ENGRAM_OK);
	for (uint32_t layer = 0; layer < n.layers; layer++) {
		struct engram_layer_info info;

		engram_layer_info(engram_cuda_host_table(t), layer, &info);
		/* of the last layer the first head of this rank */
		ids[(size_t)layer * n.cols + info.shard.head_begin] = -1;
	}
	device_ids = to_device(ids, bytes);
	for (uint32_t layer = 0; layer < n.layers; layer++)
		check_layer(t, layer, ids, device_ids);
	CUDA(cudaFree(device_ids));
	free(ids);
	assert_int_equal(engram_cuda_counters(t, NULL, &after), ENGRAM_OK);
	assert_int_equal(after.misses - before.misses, n.layers);
	assert_int_equal(after.rejects, 0);
}

/* ---- tests ---- */

static void every_rank(void **state)
{
	for (uint32_t size = 1; size <= 5; size += 2)
		for (uint32_t rank = 0; rank < size; rank++) {
			engram_cuda_table *t = attach(*state, rank, size, NULL);

			check_use(t);
			assert_int_equal(engram_cuda_detach(t), ENGRAM_OK);
		}
}

static void says_what_it_holds(void **state)
{
	engram_cuda_table *t = attach(*state, 0, 1, NULL);
	struct engram_cuda_progress progress;
	struct engram_cuda_info info;
	struct engram_layer_info layer;
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < FAKE_LAYERS; i++) {
		assert_int_equal(
			engram_layer_info(engram_cuda_host_table(t), i, &layer),
			ENGRAM_OK);
		for (uint32_t m = 0; m < layer.num_mappings; m++)
			bytes += layer.mapping[m].bytes;
	}
	assert_int_equal(engram_cuda_info(t, &info), ENGRAM_OK);
	assert_int_equal(info.device, 0);
	assert_int_equal(info.placement, ENGRAM_CUDA_REGISTERED);
	assert_int_equal(info.registered_bytes, bytes);
	assert_in_range(info.device_bytes, 1, 1 << 20);
	assert_int_equal(engram_cuda_progress(t, &progress), ENGRAM_OK);
	assert_int_equal(progress.ready, 1);
	assert_int_equal(progress.done_bytes, bytes);
	assert_int_equal(progress.total_bytes, bytes);
	assert_int_equal(engram_cuda_detach(t), ENGRAM_OK);
}

static void in_device_memory(void **state)
{
	const struct engram_cuda_attach_params cuda = {
		.device = -1,
		.placement = ENGRAM_CUDA_DEVICE,
		.chunk_bytes = 4096,
	};
	engram_cuda_table *t = attach(*state, 1, 2, &cuda);
	struct engram_cuda_info info;
	struct engram_cuda_source source;

	check_use(t);
	assert_int_equal(engram_cuda_info(t, &info), ENGRAM_OK);
	assert_int_equal(info.registered_bytes, 0);
	assert_int_equal(engram_cuda_layer_source(t, 0, &source), ENGRAM_OK);
	assert_true(source.resident);
	assert_int_equal(engram_cuda_detach(t), ENGRAM_OK);
}

/* The permissions of the mapping that an address is in, as "r--s". */
static void permissions(const void *address, char *out)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	char line[512];

	assert_non_null(maps);
	strcpy(out, "none");
	while (fgets(line, sizeof(line), maps)) {
		unsigned long begin, end;
		char what[5];

		if (sscanf(line, "%lx-%lx %4s", &begin, &end, what) == 3 &&
		    begin <= (uintptr_t)address && (uintptr_t)address < end)
			strcpy(out, what);
	}
	fclose(maps);
}

static void registered_writable(void **state)
{
	const struct engram_cuda_attach_params cuda = {
		.device = 0, .chunk_bytes = 8192, .force_writable = 1};
	struct setting *s = *state;
	engram_cuda_table *t = attach(s, 0, 1, &cuda);
	struct engram_layer_info layer;
	struct engram_cuda_info info;
	char mode[8];

	assert_int_equal(s->fake.writable, 1);
	check_use(t);
	assert_int_equal(engram_cuda_info(t, &info), ENGRAM_OK);
	assert_int_equal(info.read_only, 0);
	engram_layer_info(engram_cuda_host_table(t), 0, &layer);
	permissions(layer.mapping[0].address, mode);
	assert_string_equal(mode, "r--s");
	assert_int_equal(engram_cuda_detach(t), ENGRAM_OK);
}

static void refuses(void **state)
{
	struct setting *s = *state;
	struct engram_attach_params demo = {.table = "demo"}, none = {0};
	struct engram_cuda_attach_params cuda = {.device = 99};
	struct engram_cuda_lookup_params lookup = {0};
	struct engram_cuda_source source;
	engram_cuda_table *t;

	assert_int_equal(engram_cuda_attach(s->client, &demo, &cuda, &t),
			 ENGRAM_ECUDA);
	assert_non_null(strstr(engram_last_error()->message, "cudaSetDevice"));
	assert_null(t);
	cuda.device = 0;
	cuda.chunk_bytes = UINT64_C(512) << 30;
	assert_int_equal(engram_cuda_attach(s->client, &demo, &cuda, &t),
			 ENGRAM_EINVAL);
	assert_string_equal(engram_last_error()->message,
			    "chunk_bytes: more than 256 GiB");
	cuda.chunk_bytes = 0;
	assert_int_equal(engram_cuda_attach(s->client, &none, &cuda, &t),
			 ENGRAM_EINVAL);
	assert_int_equal(engram_cuda_attach(s->client, NULL, &cuda, &t),
			 ENGRAM_EINVAL);
	t = attach(s, 0, 1, NULL);
	assert_int_equal(
		engram_cuda_table_lookup(t, FAKE_LAYERS, &lookup, NULL, NULL),
		ENGRAM_EINVAL);
	lookup.num_tokens = -1;
	assert_int_equal(engram_cuda_table_lookup(t, 0, &lookup, NULL, NULL),
			 ENGRAM_EINVAL);
	assert_non_null(strstr(engram_last_error()->message, "num_tokens"));
	assert_int_equal(engram_cuda_layer_source(t, FAKE_LAYERS, &source),
			 ENGRAM_EINVAL);
	assert_int_equal(engram_cuda_detach(t), ENGRAM_OK);
	assert_int_equal(engram_cuda_detach(NULL), ENGRAM_OK);
}

static int child_is_refused(engram_cuda_table *t)
{
	struct engram_cuda_lookup_params lookup = {0};
	struct engram_cuda_progress progress;
	struct engram_cuda_counters counters;
	struct engram_hash_params hash;
	struct engram_cuda_info info;

	return engram_cuda_table_lookup(t, 0, &lookup, NULL, NULL) ==
		       ENGRAM_EINVAL &&
	       !strcmp(engram_last_error()->message,
		       "handle used after fork") &&
	       engram_cuda_progress(t, &progress) == ENGRAM_EINVAL &&
	       engram_cuda_counters(t, NULL, &counters) == ENGRAM_EINVAL &&
	       engram_cuda_hash_params(t, &hash) == ENGRAM_EINVAL &&
	       engram_cuda_wait(t, -1) == ENGRAM_EINVAL &&
	       engram_cuda_info(t, &info) == ENGRAM_EINVAL &&
	       engram_cuda_detach(t) == ENGRAM_EINVAL;
}

static void forked_child(void **state)
{
	engram_cuda_table *t = attach(*state, 0, 1, NULL);
	pid_t pid = fork();
	int status;

	assert_true(pid >= 0);
	if (!pid)
		_exit(child_is_refused(t) ? 0 : 1);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	check_use(t);
	assert_int_equal(engram_cuda_detach(t), ENGRAM_OK);
}

/* Without waiting, wherever the registration is. */
static void detached_early(void **state)
{
	struct setting *s = *state;
	const struct engram_cuda_attach_params cuda = {.device = -1,
						       .chunk_bytes = 4096};
	struct engram_attach_params params = {.table = "demo"};
	engram_cuda_table *t;

	for (int i = 0; i < 20; i++) {
		assert_int_equal(
			engram_cuda_attach(s->client, &params, &cuda, &t),
			ENGRAM_OK);
		assert_int_equal(engram_cuda_detach(t), ENGRAM_OK);
	}
}

static void *attach_and_use(void *state)
{
	for (int i = 0; i < 5; i++) {
		engram_cuda_table *t = attach(state, (uint32_t)i % 2, 2, NULL);

		check_use(t);
		engram_cuda_detach(t);
	}
	return state;
}

static void two_threads(void **state)
{
	pthread_t thread[2];
	void *done;

	for (int i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&thread[i], NULL,
						attach_and_use, *state),
				 0);
	for (int i = 0; i < 2; i++) {
		pthread_join(thread[i], &done);
		assert_ptr_equal(done, *state);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
		TEST(every_rank),	TEST(says_what_it_holds),
		TEST(in_device_memory), TEST(registered_writable),
		TEST(refuses),		TEST(forked_child),
		TEST(detached_early),	TEST(two_threads),
	};

#ifndef FAKE_CUDA
	int devices;

	if (cudaGetDeviceCount(&devices) || !devices) {
		puts("skip: no CUDA device");
		return 77;
	}
#else
	fake_cuda_reset();
#endif
	return cmocka_run_group_tests(tests, NULL, NULL);
}
