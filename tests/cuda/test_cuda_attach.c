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
#include "setting.h"
#ifdef FAKE_CUDA
#include "fake_cuda.h"
#endif

/* ---- tests ---- */

static void every_rank(void **state)
{
	for (uint32_t size = 1; size <= 5; size += 2)
		for (uint32_t rank = 0; rank < size; rank++) {
			engram_cuda_table *t =
				setting_attach(*state, rank, size, NULL);

			check_use(t);
			assert_int_equal(engram_cuda_detach(t), ENGRAM_OK);
		}
}

static void says_what_it_holds(void **state)
{
	engram_cuda_table *t = setting_attach(*state, 0, 1, NULL);
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
	engram_cuda_table *t = setting_attach(*state, 1, 2, &cuda);
	struct engram_cuda_info info;
	struct engram_cuda_source source;

	check_use(t);
	assert_int_equal(engram_cuda_info(t, &info), ENGRAM_OK);
	assert_int_equal(info.registered_bytes, 0);
	assert_int_equal(engram_cuda_layer_source(t, 0, &source), ENGRAM_OK);
	assert_true(source.resident);
	assert_int_equal(engram_cuda_detach(t), ENGRAM_OK);
}

static void registered_writable(void **state)
{
	const struct engram_cuda_attach_params cuda = {
		.device = 0, .chunk_bytes = 8192, .force_writable = 1};
	struct setting *s = *state;
	engram_cuda_table *t = setting_attach(s, 0, 1, &cuda);
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
	t = setting_attach(s, 0, 1, NULL);
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
	engram_cuda_table *t = setting_attach(*state, 0, 1, NULL);
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
		engram_cuda_table *t =
			setting_attach(state, (uint32_t)i % 2, 2, NULL);

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

#ifndef FAKE_CUDA
#define CUDA(call) assert_int_equal((call), cudaSuccess)

static void come_and_go(struct setting *s, enum engram_cuda_placement placement)
{
	const struct engram_cuda_attach_params cuda = {
		.device = -1, .placement = placement, .chunk_bytes = 4096};

	assert_int_equal(engram_cuda_detach(setting_attach(s, 0, 1, &cuda)),
			 ENGRAM_OK);
}

static void replay(cudaGraph_t graph, cudaStream_t stream)
{
	cudaGraphExec_t exec;

	CUDA(cudaGraphInstantiateWithFlags(&exec, graph, 0));
	CUDA(cudaGraphLaunch(exec, stream));
	CUDA(cudaStreamSynchronize(stream));
	CUDA(cudaGraphExecDestroy(exec));
	CUDA(cudaGraphDestroy(graph));
}

/* A capture of the strictest mode goes on while other handles come and go,
 * and has the lookup that was made before. */
static void report_24_while_capturing(void **state)
{
	engram_cuda_table *t = setting_attach(*state, 0, 1, NULL);
	struct engram_cuda_lookup_params lookup = {.ids_head_stride = 1,
						   .num_tokens = 1};
	struct engram_cuda_counters before, after;
	struct engram_table_info info;
	cudaStream_t stream;
	cudaGraph_t graph;
	int32_t *ids;
	uint16_t *out;

	engram_table_info(engram_cuda_host_table(t), &info);
	CUDA(cudaMalloc((void **)&ids, info.num_cols * sizeof(*ids)));
	CUDA(cudaMemset(ids, 0xff, info.num_cols * sizeof(*ids)));
	CUDA(cudaMalloc((void **)&out,
			sizeof(*out) * info.local_heads * info.dim));
	lookup.ids = ids;
	CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	assert_int_equal(engram_cuda_counters(t, stream, &before), ENGRAM_OK);
	CUDA(cudaDeviceSynchronize());
	CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
	if (engram_cuda_table_lookup(t, 0, &lookup, out, stream))
		fail_msg("lookup: %s", engram_last_error()->message);
	come_and_go(*state, ENGRAM_CUDA_REGISTERED);
	come_and_go(*state, ENGRAM_CUDA_DEVICE);
	CUDA(cudaStreamEndCapture(stream, &graph));
	replay(graph, stream);
	assert_int_equal(engram_cuda_counters(t, stream, &after), ENGRAM_OK);
	assert_int_equal(after.misses - before.misses, info.num_cols);
	CUDA(cudaStreamDestroy(stream));
	CUDA(cudaFree(ids));
	CUDA(cudaFree(out));
	assert_int_equal(engram_cuda_detach(t), ENGRAM_OK);
}
#endif

int main(void)
{
	const struct CMUnitTest tests[] = {
#define TEST(name) \
	cmocka_unit_test_setup_teardown(name, setting_make, setting_free)
		TEST(every_rank),
		TEST(says_what_it_holds),
		TEST(in_device_memory),
		TEST(registered_writable),
		TEST(refuses),
		TEST(forked_child),
		TEST(detached_early),
		TEST(two_threads),
#ifndef FAKE_CUDA
		TEST(report_24_while_capturing),
#endif
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
